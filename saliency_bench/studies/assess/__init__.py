"""Assessment: people rate the maps of an image by several anonymous explainers.

The design follows the assessment page of Saliency-Bench (appendix B): five maps in random order, and three questions
about each map.
"""
