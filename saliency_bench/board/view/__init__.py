"""What the page of a board shows: rows, the state in its address, tables, plots, exports. Shows what `board` says."""
