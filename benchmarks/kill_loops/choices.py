"""Kill `choose`: the recommendation, the page and the scores must not change."""

import random
import shutil
import time
from pathlib import Path

from children import Children

import saliency_bench as sb
from kill_loops.common import Outcome, at_once, bad_luck, contents, working_in

CHOOSING = {
    "out": "choice", "for_": "alignment", "within": None, "limit": 72, "device": "cpu", "progress": False,
    "explainers": ["gradcam", "gradcam:layer=resnet.encoder.stages.0", "gradient", "occlusion:window=8,stride=8"],
}  # fmt: skip
CHOICE = Path("choice")
RESULTS = ("choice.json", "choice.html", "run/records.parquet", "run/summary.json")


def results() -> dict[str, bytes]:
    """Return the contents of the files that must not differ."""
    return {name: data for name, data in contents(CHOICE).items() if name in RESULTS}


def where() -> str:
    if (CHOICE / "choice.html").exists():
        return "at the end"
    if (CHOICE / "choice.json").exists():
        return "before the page"
    if (CHOICE / "randomised").exists():
        return "in later rounds"
    return "in the first round" if (CHOICE / "run").exists() else "before the first round"


def begin(costs: Path) -> None:
    """Create the folder of a choice with a fixed time per pass, because repeated measurements would differ."""
    shutil.rmtree(CHOICE, ignore_errors=True)
    CHOICE.mkdir()
    shutil.copy(costs, CHOICE)


def choices(count: int, dataset: Path, model: Path, folder: Path, children: Children) -> Outcome:
    settings = {"dataset": str(dataset), "model": str(model)} | CHOOSING
    outcome = Outcome("choices", count)
    with working_in(folder / "undisturbed choice"):
        start = time.monotonic()
        children.to_the_end(sb.choose, settings)
        seconds = time.monotonic() - start
        expected, costs = results(), (CHOICE / "costs.json").resolve()
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"choice {number}"):
            begin(costs)
            for _ in range(bad_luck(number)):
                delay = 0.6 * seconds * dice.random()
                while not (killed := children.killed_at(at_once, delay, sb.choose, settings)) and delay > 0.1:
                    begin(costs)  # the child ended before the kill, because the machine is now less busy
                    delay /= 3
                outcome.kills[where()] += killed
            children.to_the_end(sb.choose, settings)
            if results() != expected:
                outcome.differing.append(f"choice {number}: {where()}")
    return outcome
