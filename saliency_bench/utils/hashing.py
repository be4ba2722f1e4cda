"""Hashes of files and of plain data."""

import json
from hashlib import blake2b, sha256
from pathlib import Path


def hash_of(*parts: object) -> str:
    """16 hexadecimal digits of a hash of the parts' canonical JSON."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def sha256_of(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
