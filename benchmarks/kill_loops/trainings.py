"""Kill training runs: weights, configuration and log must be the same, and no state may be left over."""

import os
import random
from pathlib import Path

from children import Children
from transformers import ResNetConfig

import saliency_bench as sb
from kill_loops.common import NETWORK, Moment, Outcome, at_once, bad_luck, contents, times, working_in, written_at

EPOCHS = 6
TRAINING = {
    "out": "tiny", "epochs": EPOCHS, "size": 32, "limit": 128, "batch_size": 8, "device": "cpu", "progress": False,
}  # fmt: skip
MODEL, STATE = Path("tiny"), Path("tiny.training.pt")


def temporary() -> list[Path]:
    """Return the temporary path of the checkpoint."""
    return [path for path in Path().glob(".tiny.*.tmp") if path.is_dir()]


def moment(number: int, dice: random.Random) -> tuple[Moment, float]:
    """Return a moment to kill a training run: at the start, after an epoch, or while the checkpoint is written."""
    kind = number % 5
    if kind == 0:
        return at_once, dice.uniform(0, 0.5)
    if kind == 1:
        return (lambda: bool(temporary())), dice.uniform(0, 0.02)
    return times(dice.randrange(1, 3), lambda: written_at(STATE)), dice.uniform(0, 0.1)


def where() -> str:
    if MODEL.exists():
        return "at the end"
    if temporary():
        return "while writing the checkpoint"
    return "between epochs" if STATE.exists() else "before the end of the first epoch"


def trainings(count: int, dataset: Path, folder: Path, children: Children) -> Outcome:
    settings = {"dataset": str(dataset), "model": ResNetConfig(**NETWORK)} | TRAINING
    outcome = Outcome("trainings", count)
    with working_in(folder / "undisturbed training"):
        children.to_the_end(sb.train, settings)
        expected = contents(MODEL)
        if os.listdir() != ["tiny"]:
            raise RuntimeError(f"an undisturbed training run left {os.listdir()}")
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"training {number}"):
            for start in range(bad_luck(number)):
                if _unfinished() and children.killed_at(*moment(number + 3 * start, dice), sb.train, settings):
                    outcome.kills[where()] += 1
            if _unfinished():
                children.to_the_end(sb.train, settings)
            if contents(MODEL) != expected or os.listdir() != ["tiny"]:
                outcome.differing.append(f"training {number}: {os.listdir()}")
    return outcome


def _unfinished() -> bool:
    """Return whether to restart a training run. A finished one is restarted if its state was not removed yet."""
    return not MODEL.exists() or STATE.exists()
