"""Sources of maps: composed explainers, further images and targets, one picture, files and stored maps."""
