"""A table of measured throughputs, by which a plan says what a suite takes on other devices and what that costs.

A CSV file with a row per device and network, and one for each explainer and metric that was tried with it: `work`, with
its seconds beside its passes, per map. Plans and runs on a device extend the file with what they time there. What an
hour costs is written by hand, as in `1.80 EUR`, into any row of the device that has no `work`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from saliency_bench.errors import UserError
from saliency_bench.recipes.suites.costs import Key, Speed
from saliency_bench.recipes.suites.own_work import OwnWork, seconds_of
from saliency_bench.recipes.suites.plan import Step
from saliency_bench.utils.csv_text import csv_rows, csv_text
from saliency_bench.utils.files import write_text

TIMES = ("prepare", "forward", "gradient", "trained", "step", "new", "state")  # seconds, as in `Speed`
FIELDS = ("device", "network", "size", "batch", *TIMES, "memory", "price", "work", "seconds")


@dataclass(frozen=True)
class Measured:
    """The seconds of a network on a device, and what an hour of it costs, "" if nobody has said."""

    device: str
    key: Key
    speed: Speed
    price: str = ""
    own_work: OwnWork = field(default_factory=OwnWork)


def read_devices(path: Path) -> list[Measured]:
    """Read a table; [] if there is no file yet.

    Raises:
        UserError: It is no such table.
    """
    if not path.exists():
        return []
    try:
        rows = csv_rows(path.read_text(encoding="utf-8-sig"))
        measured = [_measured(row) for row in rows if not row.get("work")]
        works = {(row.device, row.key): row.own_work for row in measured}
        for row in (row for row in rows if row.get("work")):
            if row["price"].strip():
                raise ValueError("a price stands in a row with work")
            own_work = works[row["device"], _key_of(row)]
            own_work.times[row["work"]] = float(row["seconds"])
            if row["memory"]:
                own_work.memory[row["work"]] = int(row["memory"])
        return measured
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no table of devices ({error}); its columns are {', '.join(FIELDS)}") from error


def _measured(row: Mapping[str, str]) -> Measured:
    """Return a row of the file. Only medians are kept, so the ends of each range are equal."""
    prepare, forward, gradient, trained, step, new, state = times = [(float(row[name]),) * 3 for name in TIMES]
    memory = int(row["memory"]) if row["memory"] else None
    speed = Speed(prepare, forward, gradient, trained, step, memory, new, state)
    if min(times)[0] < 0:
        raise ValueError("a time is negative")
    price = row["price"].strip()
    _price_of(price)
    return Measured(row["device"], _key_of(row), speed, price)


def _key_of(row: Mapping[str, str]) -> Key:
    """Return the network of a row of the file, with the side of its images and the batch."""
    return row["network"], int(row["size"]), int(row["batch"])


def _price_of(text: str) -> tuple[float, str]:
    """Return (the amount, the currency) of "1.80 EUR"; (0, "") of ""."""
    amount, _, currency = text.partition(" ")
    return (float(amount), currency.strip()) if text else (0.0, "")


def extend_devices(
    path: Path, device: str, speeds: Mapping[Key, Speed | None], works: Mapping[Key, OwnWork] | None = None
) -> list[Measured]:
    """Add what was timed and tried on a device to a table, unless it is there; return all networks."""
    rows, works = read_devices(path), works or {}
    known = {(row.device, row.key) for row in rows}
    rows += [Measured(device, key, speed) for key, speed in speeds.items() if speed and (device, key) not in known]
    for row in rows:
        if row.device == device and row.key in works:
            row.own_work.times.update(works[row.key].times)
            row.own_work.memory.update(works[row.key].memory)
    lines: list[list[object]] = []
    for row in rows:
        times = [f"{getattr(row.speed, name)[1]:.6g}" for name in TIMES]
        lines.append([row.device, *row.key, *times, row.speed.memory or "", row.price, "", ""])
        for work, seconds in row.own_work.times.items():
            memory = row.own_work.memory.get(work, "")
            lines.append([row.device, *row.key, *[""] * len(TIMES), memory, "", work, f"{seconds:.6g}"])
    text = csv_text(FIELDS, lines)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return rows


def speeds_on(rows: Sequence[Measured], device: str) -> dict[Key, Speed | None]:
    """Return what a table holds of a device."""
    return {row.key: row.speed for row in rows if row.device == device}


def works_on(rows: Sequence[Measured], device: str) -> dict[Key, OwnWork]:
    """Return what was tried on a device."""
    return {row.key: row.own_work for row in rows if row.device == device}


def hours_on(step: Step, rows: Sequence[Measured]) -> dict[str, float | None]:
    """Return {device: hours that a run takes there}, None where its network was not timed."""
    hours: dict[str, float | None] = dict.fromkeys((row.device for row in rows), None)
    for row in rows:
        if row.key == step.key and step.cost is not None:
            hours[row.device] = seconds_of(step.cost, row.speed, row.own_work)[1] / 3600
    return hours


def device_rows(steps: Sequence[Step], rows: Sequence[Measured]) -> list[list[str]]:
    """Return what a plan takes on each device of a table: a header, and a row per device.

    A run whose network was not timed on a device is left out of its hours and counted.
    """
    table = [["device", "hours", "price", "runs not timed there"]]
    for device in dict.fromkeys(row.device for row in rows):
        speeds, works = speeds_on(rows, device), works_on(rows, device)
        hours = sum(seconds_of(step.cost, speed, works[step.key])[1] for step in steps
                    if step.cost and (speed := speeds.get(step.key))) / 3600  # fmt: skip
        amount, currency = next((_price_of(row.price) for row in rows if row.device == device and row.price), (0.0, ""))
        price = f"{hours * amount:,.2f} {currency}".strip() if amount else "–"
        left = sum(step.cost is None or (bool(step.cost) and step.key not in speeds) for step in steps)
        table.append([device, f"{hours:,.1f}" if hours >= 0.1 else f"{hours:.3f}", price, str(left)])
    return table
