"""Masks of a study in the formats of annotation programs: one module per format, with `write` and `read`.

`check(drawn)` refuses names that the format cannot store; `write(out, drawn)` writes into an empty folder;
`read(path, person, selection)` returns one person's {unit: mask}, with an empty mask for "no region". The selection
assigns regions to units and counts all others. Every format keeps every pixel. Files may come from strangers: they are
checked, and nothing in them is executed.
"""
