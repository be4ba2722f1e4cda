"""Kill suites in smoke tests, and compare datasets, networks, records, predictions, summaries, tables and the page."""

import os
import random
from pathlib import Path

import yaml
from children import Children

from kill_loops.common import Moment, Outcome, at_once, bad_luck, contents, times, working_in
from saliency_bench.compute import writing

OUT = Path("out")
SUITE = {
    "paper": "Own",
    "datasets": {"shapes": {"name": "shapes"}},
    "models": {"small": {"name": "small", "family": "resnet", "train": {"epochs": 1}}},
    "runs": {"all": {"datasets": ["shapes"], "models": ["small"], "explainers": ["gradcam", "rise:masks=50"],
                     "metrics": ["saliency_miou", "saliency_insertion:steps=4"]}},
    "tables": {
        "scores": {"title": "Scores", "runs": ["all"], "rows": ["explainer"], "columns": ["value"],
                   "values": {"mIoU": {"metric": "saliency_miou"}}},
        "accuracy": {"title": "Accuracy", "runs": ["all"], "rows": ["model"], "columns": ["value"],
                     "values": {"top": {"accuracy": "top1"}, "up": {"accuracy": "top1", "transform": "up"}}},
    },
    "smoke": {"drawings": 40, "passes": 1, "count": 60, "limit": 8, "size": 32},
}  # fmt: skip
STAGES = {"tables": "while writing tables", "accuracies": "after the run", "runs": "while running",
          "models": "while training", "data": "while building"}  # fmt: skip
# Files that may differ, because they depend on times or on how batches are grouped.
DIFFER = ("timings.json", "written.json", "report.html", ".lock")


def write_suite() -> None:
    Path("own.yaml").write_text(yaml.safe_dump(SUITE))


def run_suite(file: str = "own.yaml") -> None:
    """Run the suite in a child."""
    from saliency_bench.recipes.suites.suite import suite

    writing.SECONDS = 0.05
    result = suite(file, out=OUT, smoke=True, batch_size=2, device="cpu", progress=False)
    if result.failed:
        raise RuntimeError(str(result.failed))


def results() -> dict[str, bytes]:
    content_of = contents(OUT)
    parts = ("/scores/", "/predictions/", "/thumbnails/")
    return {path: content for path, content in content_of.items()
            if not path.endswith(DIFFER) and not any(part in path for part in parts)}  # fmt: skip


def written() -> int:
    """Return the number of files and folders that the suite has written."""
    # `os.walk` ignores folders that disappear meanwhile.
    return sum(len(folders) + len(files) for _, folders, files in os.walk(OUT))


def moment(number: int, dice: random.Random) -> tuple[Moment, float]:
    """Return (moment, delay) of a kill: at the start, after some new files, or while the last pages are written."""
    if number % 5 == 0:
        return at_once, dice.uniform(0, 0.5)
    if number % 5 == 1:
        return (OUT / "tables").exists, dice.uniform(0, 0.05)
    return times(dice.randrange(1, 30), written), dice.uniform(0, 0.03)


def where() -> str:
    return next((stage for folder, stage in STAGES.items() if (OUT / folder).exists()), "at the start")


def suites(count: int, folder: Path, children: Children) -> Outcome:
    outcome = Outcome("suites", count)
    with working_in(folder / "undisturbed suite"):
        write_suite()
        children.to_the_end(run_suite, {})
        expected = results()
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"suite {number}"):
            write_suite()
            for start in range(bad_luck(number)):
                if children.killed_at(*moment(number + start, dice), run_suite, {}):
                    outcome.kills[where()] += 1
            children.to_the_end(run_suite, {})
            content_of = results()
            wrong = [
                path for path in sorted(content_of.keys() | expected) if content_of.get(path) != expected.get(path)
            ]
            if wrong:
                outcome.differing.append(f"suite {number}: {', '.join(wrong)}")
    return outcome
