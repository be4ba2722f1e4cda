"""Build, describe and load datasets with ground-truth masks."""
