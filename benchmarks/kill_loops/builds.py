"""Kill builds, with or without a source, new or replacing a dataset. Folders must be identical, without leftovers."""

import os
import random
from pathlib import Path

from children import Children

import saliency_bench as sb
from kill_loops.common import Moment, Outcome, at_once, bad_luck, contents, working_in
from saliency_bench import registry

OUT, WORKSPACE, REPLACED = Path("data"), Path(".data.building"), Path(".data.replaced")
SOURCE_SIZE = 400  # number of pictures
BATCHES = SOURCE_SIZE // 32


def kinds(folder: Path) -> list[dict]:
    """Return the settings of the builds. The second build replaces an existing dataset."""
    source = folder / "source"
    registry.load("hub_builders", "pet-xai").example(source, SOURCE_SIZE, 32)
    return [
        {"name": "pet-xai", "source": str(source), "workers": 2},
        {"name": "pet-xai", "source": str(source), "workers": 1, "overwrite": True, "seed": 1},
        {"name": "shapes-xai", "size": 32, "count": SOURCE_SIZE, "workers": 2},
    ]


def batches() -> int:
    return len(list(WORKSPACE.glob("batches/*.parquet")))


def moment(number: int, dice: random.Random) -> tuple[Moment, float]:
    """Return a moment to kill a build: at the start, between batches, or while the dataset is written or moved."""
    kind = number % 5
    if kind == 0:
        return at_once, dice.uniform(0, 0.3)
    if kind == 1:
        return (WORKSPACE / "dataset" / "build_report.json").exists, dice.uniform(0, 0.01)
    if kind == 2:
        return (lambda: REPLACED.exists() or (WORKSPACE / "dataset" / "README.md").exists()), dice.uniform(0, 0.003)
    enough = min(batches() + dice.randrange(1, 5), BATCHES)
    return (lambda: batches() >= enough), dice.uniform(0, 0.05)


def where() -> str:
    if REPLACED.exists():
        return "while moving into place"
    if (WORKSPACE / "dataset" / "build_report.json").exists():
        return "while writing report and card"
    if not WORKSPACE.exists():
        return "at the end" if OUT.exists() else "at the start"
    return "between batches" if batches() else "before the first batch"


def builds(count: int, folder: Path, children: Children) -> Outcome:
    outcome, every = Outcome("builds", count), kinds(folder)
    older = {"name": "shapes-xai", "size": 32, "count": 40, "out": str(OUT), "progress": False}
    expected = []
    for number, kind in enumerate(every):
        with working_in(folder / f"undisturbed build {number}"):
            children.to_the_end(sb.build, kind | {"out": str(OUT), "progress": False})
            expected.append(contents(OUT))
    with working_in(folder / "older build"):
        children.to_the_end(sb.build, older)
        before = contents(OUT)
    for number in range(count):
        dice, kind = random.Random(number), number % len(every)
        settings = every[kind] | {"out": str(OUT), "progress": False}
        with working_in(folder / f"build {number}"):
            if replaces := "overwrite" in settings:
                children.to_the_end(sb.build, older)
            for start in range(bad_luck(number // 3)):
                when = moment(number // 3 + 2 * start, dice)
                if _unfinished(replaces) and children.killed_at(*when, sb.build, settings):
                    outcome.kills[where()] += 1
                    if contents(OUT) not in ({}, expected[kind], before if replaces else {}):
                        outcome.differing.append(f"build {number}: half a dataset after a kill")
            if _unfinished(replaces):
                children.to_the_end(sb.build, settings)
            if contents(OUT) != expected[kind] or _beside():
                outcome.differing.append(f"build {number}: {os.listdir()}")
    return outcome


def _beside() -> list[str]:
    """Return leftover files next to a dataset, except a few bytes of a workspace whose removal was interrupted."""
    notes = [*WORKSPACE.glob("*")]
    return [name for name in os.listdir() if name != "data" and (name != str(WORKSPACE) or len(notes) > 2 or batches())]


def _unfinished(replaces: bool) -> bool:
    """Return whether to start a build again. A build that replaces a dataset is always started again."""
    return replaces or not OUT.exists() or (WORKSPACE / "batches").exists()
