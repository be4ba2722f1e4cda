"""The scenes of shapes-xai: tones from 0 to 256 at coordinates from 0 to 1023, drawn at twice the size and averaged.

All arithmetic uses integers, so a scene has the same pixels on every machine.
"""

import numpy as np

from saliency_bench.hub_builders._shapes_colours import Colour, Dice

Grid = np.ndarray


def painted_scene(name: str, size: int, ground: tuple[Colour, Colour], dice: Dice) -> Grid:
    """Return a scene, uint8 (size, size, 3), with tones between two colours, softly lit from one corner."""
    axis = (2 * np.arange(2 * size) + 1) * 256 // size
    x, y = axis[None, :] + 0 * axis[:, None], axis[:, None] + 0 * axis[None, :]
    tone = SCENES[name](x, y, dice).clip(0, 256)
    tone = tone.reshape(size, 2, size, 2).sum(axis=(1, 3)) // 4
    corner = dice(0, 4)
    light = (x if corner % 2 else 1023 - x) + (y if corner // 2 else 1023 - y)
    glow = light[::2, ::2, None] // 100 - 10
    colours = (np.array(ground[0]) * (256 - tone[..., None]) + np.array(ground[1]) * tone[..., None]) // 256
    return (colours + glow).clip(0, 255).astype(np.uint8)


def clouds(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the tones of clouds."""
    coarse = smooth(dice.many(0, 257, 8, 8), x, y, 300, 220)
    fine = smooth(dice.many(0, 257, 16, 16), x, y, 130, 90)
    return ((2 * coarse + fine) // 3 - 64) * 2


def bricks(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the grey level of each point of a brick wall."""
    high, wide = dice(130, 180), dice(240, 330)
    down = y + dice(0, high)
    row = down // high
    along = x + row % 2 * (wide // 2) + dice(0, wide)
    tone = dice.many(110, 257, 16, 16)[row, along // wide]
    return np.where((down % high < 30) | (along % wide < 30), 0, tone)


def waves(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the tones of waves."""
    sway = bump(x * dice(1, 4) + dice(0, 1024)) * dice(70, 130) // 256
    return bump((y + sway) * dice(4, 7) + dice(0, 1024))


def hills(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the tones of several rows of hills."""
    tone = np.zeros_like(x)
    for layer in range(1, 5):
        ridge = smooth(dice.many(0, 257, 2, 8), x + dice(0, 250), 0 * y, 250, 1024)
        tone = np.where(y > layer * 210 - 190 + ridge, layer * 64, tone)
    return tone


def snow(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the tones of snow: one flake per cell of a shifted grid, on a linear brightness gradient."""
    cell = dice(120, 170)
    x, y = x + dice(0, cell), y + dice(0, cell)
    column, row = x // cell, y // cell
    radius = dice.many(14, 40, 12, 12)[row, column]
    middle_x, middle_y = (dice.many(40, cell - 40, 12, 12)[row, column] for _ in range(2))
    flake = (x % cell - middle_x) ** 2 + (y % cell - middle_y) ** 2 <= radius * radius
    return np.where(flake, 256, y // 10)


def planks(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the tones of planks."""
    wide = dice(170, 240)
    along = x + dice(0, wide)
    grain = smooth(dice.many(0, 110, 4, 48), along, y, 30, 520)
    tone = dice.many(60, 160, 12)[along // wide] + grain
    return np.where(along % wide < 26, 0, tone)


def pebbles(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the tones of pebbles: cells around the points of a jittered grid.

    The gaps between pebbles are where the distances to the two nearest points are almost equal.
    """
    cell = dice(180, 250)
    shift_x, shift_y = dice.many(0, cell, 10, 10), dice.many(0, cell, 10, 10)
    tones = dice.many(100, 257, 10, 10)
    nearest, second, tone = np.full_like(x, 2**30), np.full_like(x, 2**30), np.zeros_like(x)
    for step in range(9):
        column, row = x // cell + step % 3, y // cell + step // 3
        away_x, away_y = x - (column - 1) * cell - shift_x[row, column], y - (row - 1) * cell - shift_y[row, column]
        distance = away_x * away_x + away_y * away_y
        second = np.minimum(second, np.maximum(nearest, distance))
        tone = np.where(distance < nearest, tones[row, column], tone)
        nearest = np.minimum(nearest, distance)
    return np.where(second - nearest < 50 * cell, 0, tone)


def plaid(x: Grid, y: Grid, dice: Dice) -> Grid:
    """Return the tones of a plaid pattern."""
    period, broad, fine = dice(300, 400), dice(110, 150), dice(24, 36)
    tone = np.zeros_like(x)
    for along in (x + dice(0, period), y + dice(0, period)):
        place = along % period
        tone = tone + np.where(place < broad, 100, 0) + np.where(abs(place - period + 90) < fine, 60, 0)
    return tone


def smooth(values: Grid, x: Grid, y: Grid, step_x: int, step_y: int) -> Grid:
    """Interpolate smoothly between values at grid points that are `step_x` and `step_y` apart."""
    column, row = x // step_x, y // step_y
    across, down = ease(x % step_x * 256 // step_x), ease(y % step_y * 256 // step_y)
    upper = values[row, column] * (256 - across) + values[row, column + 1] * across
    lower = values[row + 1, column] * (256 - across) + values[row + 1, column + 1] * across
    return (upper * (256 - down) + lower * down) // 65536


def ease(part: Grid) -> Grid:
    """Return 3t^2 - 2t^3, where t and the result are in units of 1/256."""
    return part * part * (768 - 2 * part) // 65536


def bump(phase: Grid) -> Grid:
    """Return a wave of period 1024 between 0 and 256."""
    return ease(abs(phase % 1024 - 512) // 2)


SCENES = {
    "bricks": bricks,
    "clouds": clouds,
    "hills": hills,
    "pebbles": pebbles,
    "plaid": plaid,
    "planks": planks,
    "snow": snow,
    "waves": waves,
}
