"""A run as files: records, cells, identities, statistics, summary."""
