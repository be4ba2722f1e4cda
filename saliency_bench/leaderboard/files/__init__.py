"""The files of a submission that are not JSON: records, maps, and the pages of Parquet, read within bounds."""
