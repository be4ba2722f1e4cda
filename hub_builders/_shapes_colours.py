"""Random integers and colours for shapes-xai."""

import numpy as np

from saliency_bench.utils.seeds import random_bits, seed_of

Colour = tuple[int, int, int]


class Dice:
    """A reproducible stream of random integers."""

    def __init__(self, seed: int):
        self.seed, self.bits, self.used = seed, random_bits(seed, 256), 0

    def __call__(self, low: int, high: int) -> int:
        """Return a random integer n with low <= n < high."""
        self.used += 1
        return low + int(self.bits[self.used - 1]) % (high - low)

    def many(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Return an array of random integers n with low <= n < high. They come from a separate stream."""
        bits = random_bits(seed_of(self.seed, "many", self(0, 2**40)), int(np.prod(shape)))
        return low + (bits % np.uint64(high - low)).astype(np.int64).reshape(shape)


def palette(dice: Dice) -> tuple[tuple[Colour, Colour], tuple[Colour, Colour]]:
    """Return two muted colours for the scene and two vivid colours for the object.

    The object's colours differ from the scene's colours in hue and brightness.
    """
    hue, dark = dice(0, 1536), dice(0, 2)
    value = dice(56, 92) if dark else dice(196, 232)
    ground = (
        hsv(hue, dice(50, 120), value),
        hsv(hue + dice(-220, 221), dice(30, 110), value + (dice(26, 44) if dark else -dice(26, 44))),
    )
    bright = [luma(colour) for colour in ground]
    vivid = [hsv(hue + dice(480, 1057), dice(200, 250), 245) for _ in range(2)]
    main = (max if dark else min)(vivid, key=luma)  # otherwise, yellow would turn brown, and blue pale
    tint = mixed(main, (255, 255, 250) if dark else (20, 16, 40), dice(150, 190))
    if dark:
        return ground, (lightened(main, max(bright) + 50), lightened(tint, max(bright) + 100))
    return ground, (darkened(main, min(bright) - 50), darkened(tint, min(bright) - 100))


def hsv(hue: int, saturation: int, value: int) -> Colour:
    """Convert integer HSV to RGB. The hue has 1536 steps; saturation and value range from 0 to 255."""
    sector, step = divmod(hue % 1536, 256)
    low = value * (255 - saturation) // 255
    up, down = low + (value - low) * step // 255, value - (value - low) * step // 255
    wheel = (
        (value, up, low),
        (down, value, low),
        (low, value, up),
        (low, down, value),
        (up, low, value),
        (value, low, down),
    )
    return wheel[sector]


def luma(colour: Colour) -> int:
    """Return the brightness of a colour."""
    return (299 * colour[0] + 587 * colour[1] + 114 * colour[2]) // 1000


def mixed(a: Colour, b: Colour, share: int) -> Colour:
    """Mix two colours: `share` parts of b and 256 - `share` parts of a."""
    red, green, blue = ((x * (256 - share) + y * share) // 256 for x, y in zip(a, b, strict=True))
    return red, green, blue


def lightened(colour: Colour, goal: int) -> Colour:
    """Mix a colour with white until its brightness reaches `goal`."""
    shares = range(0, 257, 16)
    return next((c for c in (mixed(colour, (255, 255, 255), s) for s in shares) if luma(c) >= goal), (255, 255, 255))


def darkened(colour: Colour, goal: int) -> Colour:
    """Mix a colour with black until its brightness falls to `goal`."""
    shares = range(0, 257, 16)
    return next((c for c in (mixed(colour, (0, 0, 0), s) for s in shares) if luma(c) <= goal), (0, 0, 0))
