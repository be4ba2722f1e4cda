"""The leaderboard: the page of a board of results, as a Space and on a laptop."""
