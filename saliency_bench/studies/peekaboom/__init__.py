"""Peek-a-boom: people see the top pixels of a map of an image, then more, until they can name its class.

Lu et al., Crowdsourcing Evaluation of Saliency-based XAI Methods, 2021.
"""
