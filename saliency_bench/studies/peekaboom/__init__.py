"""Peek-a-boom: people name the class of an image of which they see the top pixels of a map, and more until they can.

Lu et al., Crowdsourcing Evaluation of Saliency-based XAI Methods, 2021.
"""
