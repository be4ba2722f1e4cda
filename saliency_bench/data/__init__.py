"""Building, describing and loading datasets with ground-truth masks."""
