"""Peek-a-boom: people see the pixels of an image that a map ranks highest, and then more, until they name the class.

Lu et al., Crowdsourcing Evaluation of Saliency-based XAI Methods, 2021.
"""
