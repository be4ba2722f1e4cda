"""The page of a board: rows, the state in its address, tables, plots and exports. It shows the results of `board`."""
