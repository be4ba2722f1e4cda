"""Masks of a study in the formats of annotation programs: a module each, with `write` and `read`.

`check(drawn)` refuses names that the format cannot hold; `write(out, drawn)` writes into an empty folder;
`read(path, person, selection)` gives {unit: mask} of one person, an empty mask for "no region"; the selection says
which regions count for which unit, and counts all others. All keep every pixel. What is read may come from a stranger:
it is checked, and nothing of it is executed.
"""
