"""Peek-a-boom: people name the class of an image of which they see more and more."""
