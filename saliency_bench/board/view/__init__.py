"""The web page of a board: state in the address, tables, plots and exports. It displays the results of `board`."""
