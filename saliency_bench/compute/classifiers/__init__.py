"""Load networks as classifiers, prepare images for them, and record their feature maps, gradients and attention."""
