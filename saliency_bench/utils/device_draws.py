"""The draws of `seeds`, made on the device that uses them."""

import math

import torch
from torch import Tensor


def normals(seeds: Tensor, count: int) -> Tensor:
    """Float32 (n, count): `seeds.normal(seed, count)` for each of the seeds, Int64 (n,), up to the last digits.

    Integers of 64 bits wrap around in torch as they do in numpy, where they have no sign.
    """
    steps = torch.arange(1, -(-count // 2) + 1, device=seeds.device)
    z = seeds[:, None] + _signed(0x9E3779B97F4A7C15) * steps
    z = (z ^ _right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _right(z, 27)) * _signed(0x94D049BB133111EB)
    bits = z ^ _right(z, 31)
    high, low = _right(bits, 32).to(torch.float32), (bits & 0xFFFFFFFF).to(torch.float32)
    radius = ((high + 0.5) * 2.0**-32).log().mul(-2).sqrt()
    angle = low * (2 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _right(z: Tensor, bits: int) -> Tensor:
    """Shifted to the right, with zeros from the left."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
