"""Assessment: people rate the maps of an image by several explainers, without knowing which is whose.

As on the assessment page of Saliency-Bench (appendix B): five maps in random order, three questions on each.
"""
