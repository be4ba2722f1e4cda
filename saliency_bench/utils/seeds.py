"""Generate random numbers that are the same on every machine and with every library version.

A seed is a hash of (run seed, sample id, purpose). The generator is SplitMix64 (Steele, Lea and Flood, 2014) in
unsigned 64-bit integers, so the numbers do not depend on the generator of a library.
"""

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_of(*parts: object) -> int:
    """Hash the text of `parts` to an integer in [0, 2^63)."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def random_bits(seed: int, count: int) -> np.ndarray:
    """Draw `count` uniform unsigned 64-bit integers. Element i is output number i of SplitMix64 for this seed."""
    z = np.uint64(seed) + GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seed: int, count: int) -> np.ndarray:
    """Draw `count` float32 values in [0, 1). They are multiples of 2^-24 and therefore exact on every machine."""
    return (random_bits(seed, count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def normal(seed: int, count: int) -> np.ndarray:
    """Draw `count` standard normal float32 values (Box and Muller, 1958), two per 64 bits and at most 6.8 in magnitude.

    Logarithm and cosine depend on the machine, so a value may differ in its last digits, unlike the random bits.
    """
    bits = random_bits(seed, -(-count // 2))
    high, low = (bits >> np.uint64(32)).astype(np.float32), bits.astype(np.uint32).astype(np.float32)
    radius = np.sqrt(-2 * np.log((high + np.float32(0.5)) * np.float32(2.0**-32)))
    angle = low * np.float32(2 * np.pi * 2.0**-32)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def normals(seeds: "Tensor", count: int) -> "Tensor":
    """Draw the same numbers as `normal` for each of `seeds`, int64 (n,), and return them as float32 (n, count).

    The numbers are drawn on the device of `seeds`. They agree with the numbers of `normal`, except possibly in the last
    digits. Signed 64-bit integers in torch wrap around like unsigned integers in numpy.
    """
    import torch  # imported here, because metrics that need only numpy use this module too

    steps = torch.arange(1, -(-count // 2) + 1, device=seeds.device)
    z = seeds[:, None] + _signed(0x9E3779B97F4A7C15) * steps
    z = (z ^ _right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _right(z, 27)) * _signed(0x94D049BB133111EB)
    bits = z ^ _right(z, 31)
    high, low = _right(bits, 32).to(torch.float32), (bits & 0xFFFFFFFF).to(torch.float32)
    radius = ((high + 0.5) * 2.0**-32).log().mul(-2).sqrt()
    angle = low * (float(2 * np.pi * 2.0**-32))
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


def _signed(number: int) -> int:
    """Return the signed 64-bit integer with the same bits as an unsigned integer."""
    return number - 2**64 if number >= 2**63 else number


def _right(z: "Tensor", bits: int) -> "Tensor":
    """Shift to the right and fill with zeros from the left. torch's own shift would repeat the sign bit."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
