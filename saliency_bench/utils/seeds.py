"""Random numbers that are equal on every machine and with every library version.

Seeds are hashes of their purpose: (run seed, sample id, purpose). Streams are SplitMix64 (Steele, Lea and Flood,
2014) in unsigned 64-bit integers, so nothing depends on the generator of a library.
"""

from hashlib import blake2b

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_of(*parts: object) -> int:
    """An integer in [0, 2^63) from the text of the parts."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def random_bits(seed: int, count: int) -> np.ndarray:
    """`count` uniform unsigned 64-bit integers: element i is SplitMix64's output number i for this seed."""
    z = np.uint64(seed) + GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seed: int, count: int) -> np.ndarray:
    """`count` float32 in [0, 1), multiples of 2^-24, so exact on every machine."""
    return (random_bits(seed, count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def normal(seed: int, count: int) -> np.ndarray:
    """`count` float32, standard normal (Box and Muller, 1958): two per 64 bits, at most 6.8 in magnitude.

    Logarithm and cosine depend on the machine: unlike the bits, a value may differ in its last digits.
    """
    bits = random_bits(seed, -(-count // 2))
    high, low = (bits >> np.uint64(32)).astype(np.float32), bits.astype(np.uint32).astype(np.float32)
    radius = np.sqrt(-2 * np.log((high + np.float32(0.5)) * np.float32(2.0**-32)))
    angle = low * np.float32(2 * np.pi * 2.0**-32)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
