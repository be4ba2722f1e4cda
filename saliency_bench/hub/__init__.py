"""Client and uploads for the Hugging Face Hub. This package does not depend on datasets, models or results."""
