"""Peek-a-boom: people name the class of an image while they see a growing part of it."""
