"""Masks of a study in the formats of annotation programs: a module each, with `write` and `read`.

`check(drawn)` refuses names that the format cannot hold; `write(out, drawn)` writes into an empty folder;
`read(path, person)` gives {image id: mask} of one person, an empty mask for "no region". All keep every pixel. What is
read may come from a stranger: it is checked, and nothing of it is executed.
"""
