"""Assessment study: people rate the maps of several anonymous explainers for the same image.

The design follows the assessment page of Saliency-Bench (appendix B): five maps in random order, and three questions
about each map.
"""
