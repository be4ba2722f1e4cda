"""Read and write masks of a study in the formats of annotation programs, with one module per format.

Each module defines three functions. `check(drawn)` raises an error for names that the format cannot store.
`write(out, drawn)` writes masks into an empty folder. `read(path, person, selection)` returns {unit: mask} for one
person, with an empty mask for "no region". The selection assigns regions to units and counts all other regions. All
formats are lossless. Files are untrusted: they are checked, and no content is executed.
"""
