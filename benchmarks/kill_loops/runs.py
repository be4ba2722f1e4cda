"""Kill runs, and extend some of them between two kills.

Records, predictions, summary, examples and maps must not differ.

This includes runs with metrics that use other samples (`PARTNERS`), train networks (`RETRAINING`) or use a second
classifier (`OTHER`).
"""

import random
from pathlib import Path

from children import Children

import saliency_bench as sb
from kill_loops.common import Moment, Outcome, at_once, bad_luck, working_in
from saliency_bench.compute import writing

RUN = {
    "explainers": ["gradcam", "rise:masks=100", "integrated_gradients:steps=4", "random"],
    "metrics": ["saliency_miou", "saliency_pointing_game", "saliency_insertion:steps=4"],
    "keep_maps": True, "out": "run", "batch_size": 2, "limit": 30, "device": "cpu", "progress": False,
}  # fmt: skip
# Settings of earlier calls for the same folder; the run is extended afterwards.
NARROWER = [
    {}, {}, {"limit": 11}, {"only": ["correct"]}, {"explainers": RUN["explainers"][:2]},
    {"metrics": RUN["metrics"][1:]},
]  # fmt: skip
OTHER = {"metrics": ["saliency_mcs", "saliency_mcr", "saliency_idr"], "other_label": "label"}  # with an other_model
PARTNERS = {"metrics": ["saliency_correctness:k=2", "saliency_confidence:k=2", "saliency_miou"], "split": "train"}
TRAININGS = "trainings=1,epochs=1,images=24,batch_size=8"
RETRAINING = {
    "explainers": ["gradient", "random"], "metrics": [f"saliency_roar:{TRAININGS}", f"saliency_kar:{TRAININGS}"],
}  # fmt: skip
RESULTS = ("records.parquet", "predictions.parquet", "summary.json", "examples.npz")
MERGED = (*RESULTS, "timings.json")


def run(**settings) -> None:
    """Compute a run that writes a few batches at a time, so that even a small run has many files."""
    writing.SECONDS = 0.05
    sb.run(**settings)


def names() -> list[str]:
    """Return the names of the files with parts of the scores, and of the files of retraining metrics."""
    return [path.name for folder in ("scores", "retraining") for path in Path("run", folder).rglob("*.*")]


def merging() -> bool:
    """Return whether the files that follow the last batch exist or are being written."""
    return any(path.name.strip(".").startswith(MERGED) for path in Path("run").glob("*"))


def moment(number: int, dice: random.Random) -> tuple[Moment, float]:
    """Return (moment, delay) of a kill: at the start, between batches, or while merging."""
    kind = number % 4
    if kind == 0:
        return at_once, dice.uniform(0, 0.5)
    if kind == 1:
        return merging, dice.uniform(0, 0.02)
    enough = len(names()) + dice.randrange(1, 15)
    return (lambda: len(names()) >= enough), dice.uniform(0, 0.03)


def where() -> str:
    """Return the phase of the last kill."""
    found = names()
    if not Path("run", "run.json").exists():
        return "at the start"
    if Path("run", "report.html").exists():
        return "at the end"
    if merging():
        return "while merging"
    if any(name.endswith(".tmp") for name in found):
        return "while writing a part"
    if Path("run", "retraining").exists() and not Path("run", "scores").exists():
        return "while retraining"
    return "between batches" if found else "before the first batch"


def results() -> dict[str, bytes]:
    """Return the results, including kept maps, regardless of how they are divided into files."""
    files = {name: Path("run", name).read_bytes() for name in RESULTS}
    for name in ("other_predictions.parquet", "reliability.parquet"):  # only some runs have these files
        files |= {path.name: path.read_bytes() for path in Path("run").glob(name)}
    return files | {
        f"maps of {name}": b"".join(image_id.encode() + values.tobytes() for image_id, values in maps.items())
        for name, maps in sb.load_maps("run").items()
    }


def compare(outcome: Outcome, name: str, expected: dict[str, bytes]) -> None:
    found = results()
    wrong = [file for file in sorted(found.keys() | expected) if found.get(file) != expected.get(file)]
    wrong += [path.name for path in Path("run").rglob(".*.tmp")]
    if wrong:
        outcome.differing.append(f"{name}: {', '.join(wrong)}")


def runs(
    count: int, dataset: Path, model: Path, folder: Path, children: Children, what: str = "runs",
    changes: dict | None = None,
) -> Outcome:  # fmt: skip
    """Kill runs at random moments. `changes` modify the settings `RUN`. Runs with changes are not extended."""
    settings = {"dataset": str(dataset), "model": str(model)} | RUN | (changes or {})
    histories = [{}] if changes else NARROWER
    outcome, expected = Outcome(what, count), {}
    for number in range(min(count, len(histories))):  # each sequence of settings, without kills
        with working_in(folder / f"undisturbed {what} {number}"):
            for narrower in [histories[number], {}][not histories[number] :]:
                children.to_the_end(run, settings | narrower)
            expected[number] = results()
    for number in range(count):
        dice, history = random.Random(number), number % len(histories)
        narrow = histories[history]
        with working_in(folder / f"{what} {number}"):
            for start in range(bad_luck(number)):
                asked = settings | (narrow if start == 0 else {})
                if children.killed_at(*moment(number // 6 + number + 5 * start, dice), run, asked):
                    outcome.kills[where()] += 1
                if start == 0 and "only" in narrow:
                    # The last bits of a map depend on which samples of a batch are explained together.
                    children.to_the_end(run, asked)
                if start == 0 and not Path("run", "run.json").exists():
                    history = 0  # the settings of the first call are no longer known
            children.to_the_end(run, settings)
            compare(outcome, f"{what} {number} {narrow or ''}", expected[history])
    return outcome
