"""Space for peek-a-boom: people name the class of an image while more and more of the image is revealed."""
