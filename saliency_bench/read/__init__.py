"""Read and analyse the results of runs, without torch.

This module defines the names of the files that identify the folder of a run.
"""

import re
from pathlib import Path

MANIFEST = "run.json"
WRITTEN = "written.json"  # hashes of the files derived from the records, and of their inputs
DIGITS = 16  # length of the hash in the name of a part file
PART = re.compile(rf"[0-9]{{6,}}-[0-9a-f]{{{DIGITS}}}\.parquet")


def has_parts(out: Path) -> bool:
    """Return whether a folder contains files that are named like part files of a run."""
    return any(PART.fullmatch(path.name) for path in (*out.glob("predictions/*"), *out.glob("scores/*")))
