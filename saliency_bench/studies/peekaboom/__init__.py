"""Peek-a-boom: people see more and more pixels of an image, the highest-ranked first, until they name the class.

Lu et al., Crowdsourcing Evaluation of Saliency-based XAI Methods, 2021.
"""
