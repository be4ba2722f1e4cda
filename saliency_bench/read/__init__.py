"""Read results: records, cells, identities, statistics, analyses and reports, all without torch.

The names of the files by which a run's folder is recognised are defined here.
"""

import re
from pathlib import Path

MANIFEST = "run.json"
WRITTEN = "written.json"  # the hashes of the files that follow from the records, and what they were made of
DIGITS = 16  # of the hash in the name of a part file
PART = re.compile(rf"[0-9]{{6,}}-[0-9a-f]{{{DIGITS}}}\.parquet")


def has_parts(out: Path) -> bool:
    """Return whether a folder has part files of a run, by their names."""
    return any(PART.fullmatch(path.name) for path in (*out.glob("predictions/*"), *out.glob("scores/*")))
