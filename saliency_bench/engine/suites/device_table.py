"""A table of measured throughputs, by which a plan says what a suite takes on other devices and what that costs.

A CSV file with a row per device and network, which plans and runs on a device extend with what they time there. What an
hour costs is written by hand, as in `1.80 EUR`, into any row of the device.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from saliency_bench.engine.suites.costs import Key, Speed
from saliency_bench.engine.suites.plan import Step
from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_text

TIMES = ("prepare", "forward", "gradient", "trained", "step")  # seconds per image, and per step of the optimiser
FIELDS = ("device", "network", "size", "batch", *TIMES, "memory", "price")


@dataclass(frozen=True)
class Measured:
    """A row: the seconds of a network on a device, and what an hour of it costs, "" if nobody has said."""

    device: str
    key: Key
    speed: Speed
    price: str = ""


def read_devices(path: Path) -> list[Measured]:
    """Read a table; [] if there is no file yet.

    Raises:
        UserError: It is no such table.
    """
    if not path.exists():
        return []
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
        return [_measured(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no table of devices ({error}); its columns are {', '.join(FIELDS)}") from error


def _measured(row: Mapping[str, str]) -> Measured:
    """Return a row of the file. Only medians are kept, so the ends of each range are equal."""
    prepare, forward, gradient, trained, step = times = [(float(row[name]),) * 3 for name in TIMES]
    speed = Speed(prepare, forward, gradient, trained, step, int(row["memory"]) if row["memory"] else None)
    if min(times)[0] < 0:
        raise ValueError("a time is negative")
    price = row["price"].strip()
    _price_of(price)
    return Measured(row["device"], (row["network"], int(row["size"]), int(row["batch"])), speed, price)


def _price_of(text: str) -> tuple[float, str]:
    """Return (the amount, the currency) of "1.80 EUR"; (0, "") of ""."""
    amount, _, currency = text.partition(" ")
    return (float(amount), currency.strip()) if text else (0.0, "")


def extend_devices(path: Path, device: str, speeds: Mapping[Key, Speed | None]) -> list[Measured]:
    """Add what was timed on a device to a table, unless it is there; return all rows."""
    rows = read_devices(path)
    known = {(row.device, row.key) for row in rows}
    more = [Measured(device, key, speed) for key, speed in speeds.items() if speed and (device, key) not in known]
    if more:
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(FIELDS)
        for row in [*rows, *more]:
            times = [f"{getattr(row.speed, name)[1]:.6g}" for name in TIMES]
            writer.writerow([row.device, *row.key, *times, row.speed.memory or "", row.price])
        write_text(path, text.getvalue())
    return [*rows, *more]


def speeds_on(rows: Sequence[Measured], device: str) -> dict[Key, Speed | None]:
    """Return what a table holds of a device."""
    return {row.key: row.speed for row in rows if row.device == device}


def hours_on(step: Step, rows: Sequence[Measured]) -> dict[str, float | None]:
    """Return {device: hours that a run takes there}, None where its network was not timed."""
    hours: dict[str, float | None] = dict.fromkeys((row.device for row in rows), None)
    for row in rows:
        if row.key == step.key and step.cost is not None:
            hours[row.device] = row.speed.seconds(step.cost)[1] / 3600
    return hours


def device_rows(steps: Sequence[Step], rows: Sequence[Measured]) -> list[list[str]]:
    """Return what a plan takes on each device of a table: a header, and a row per device.

    A run whose network was not timed on a device is left out of its hours and counted.
    """
    table = [["device", "hours", "price", "runs not timed there"]]
    for device in dict.fromkeys(row.device for row in rows):
        speeds = speeds_on(rows, device)
        known = [(step.cost, speed) for step in steps if step.cost and (speed := speeds.get(step.key))]
        hours = sum(speed.seconds(cost)[1] for cost, speed in known) / 3600
        amount, currency = next((_price_of(row.price) for row in rows if row.device == device and row.price), (0.0, ""))
        price = f"{hours * amount:,.2f} {currency}".strip() if amount else "–"
        left = sum(step.cost is None or (bool(step.cost) and step.key not in speeds) for step in steps)
        table.append([device, f"{hours:,.1f}" if hours >= 0.1 else f"{hours:.3f}", price, str(left)])
    return table
