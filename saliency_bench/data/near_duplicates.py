"""Find nearly identical images in different splits. With them, a classifier would be tested on its training data.

The difference hash (Krawetz, 2013) averages the grey image to 9 x 8 values. Bit (row, column) is set if the value at
this position is greater than its right neighbour. Two images are near-duplicates if at most `NEAR` of their 64 bits
differ. At least one of `NEAR + 1` bands of 16 bits is then equal in both images, so only images that share a band are
compared.
"""

from io import BytesIO

import numpy as np
from PIL import Image

NEAR = 3
BANDS, WIDTH = NEAR + 1, 64 // (NEAR + 1)
AT_ONCE = 2**22  # maximum number of comparisons in memory


def difference_hash(data: bytes) -> int:
    """Return the 64-bit difference hash of an encoded image. The top left value is the highest bit."""
    image = Image.open(BytesIO(data))
    image.draft("L", (72, 64))  # decode a JPEG at the smallest size that is large enough
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    return int.from_bytes(np.packbits(grey[:, :-1] > grey[:, 1:]).tobytes(), "big")


def across(hashes: np.ndarray, splits: np.ndarray) -> list[tuple[int, int, int]]:
    """Find the images that have a near-duplicate in an earlier split.

    Memory grows by only a few numbers per image.

    Args:
        hashes: Difference hashes, uint64 (N,).
        splits: Index of each image's split, int (N,).

    Returns:
        (i, j, number of differing bits) for each image i with a near-duplicate j in an earlier split. If there are
        several near-duplicates, j is the nearest. If several are equally near, j is the first.
    """
    pairs = np.zeros(len(hashes), [("split", np.int64), ("hash", np.uint64)])
    pairs["split"], pairs["hash"] = splits, hashes
    kinds, first, kind_of = np.unique(pairs, return_index=True, return_inverse=True)
    nearest = _nearest(kinds["hash"], kinds["split"], first)
    pairs_found = []
    for index, kind in enumerate(kind_of.ravel()):
        if nearest[kind][0] <= NEAR:
            pairs_found.append((index, nearest[kind][1], nearest[kind][0]))
    return pairs_found


def _nearest(hashes: np.ndarray, splits: np.ndarray, first: np.ndarray) -> list[tuple[int, int]]:
    """For each distinct (split, hash), return the (distance, index) of the nearest image in an earlier split."""
    best = [(65, -1)] * len(hashes)
    for band in range(BANDS):
        keys = (hashes >> np.uint64(band * WIDTH)) & np.uint64(2**WIDTH - 1)
        order = np.argsort(keys, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            if len(members) > 1 and splits[members].min() < splits[members].max():
                _update_nearest(np.sort(members), hashes, splits, first, best)
    return best


def _update_nearest(
    members: np.ndarray, hashes: np.ndarray, splits: np.ndarray, first: np.ndarray, best: list[tuple[int, int]]
) -> None:
    """Compare the images in one bucket, and update `best` where a distance is smaller."""
    members = members[np.argsort(first[members])]
    later = members[splits[members] > splits[members].min()]
    for block in np.array_split(later, -(-len(later) * len(members) // AT_ONCE)):
        bits = np.bitwise_count(hashes[block, None] ^ hashes[members]).astype(np.int16)
        bits[splits[block, None] <= splits[members]] = 65
        for row, kind in enumerate(block):
            near = int(bits[row].argmin())
            best[kind] = min(best[kind], (int(bits[row, near]), int(first[members[near]])))
