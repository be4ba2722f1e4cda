"""Read and write a study's masks in the formats of annotation programs. Each format has its own module.

Each module defines three functions. `check(drawn)` raises an error for names that the format cannot store. `write(out,
drawn)` writes masks into an empty folder. `read(path, person, selection)` returns {unit: mask} for one person, with an
empty mask for "no region". The selection assigns regions to units and counts the remaining regions. All formats are
lossless. Files are untrusted, so they are checked, and nothing in them is executed.
"""
