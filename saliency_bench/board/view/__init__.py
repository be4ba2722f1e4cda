"""The web page of a board: the state in its URL, tables, plots and exports."""
