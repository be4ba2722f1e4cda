"""Assessment: people rate the maps of an image by several explainers, without their names.

As on the assessment page of Saliency-Bench (appendix B): five maps in random order, three questions on each.
"""
