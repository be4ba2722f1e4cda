"""`doctor`: check a network and a dataset before a long run, in about two minutes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from textwrap import wrap
from time import perf_counter
from typing import TYPE_CHECKING, Any

from saliency_bench import __version__, notebook_views
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.preflight import check_settings
from saliency_bench.compute.python_objects import Objects, describe, modes_kept
from saliency_bench.errors import UserError, one_line
from saliency_bench.read.summary import aligned
from saliency_bench.recipes.doctor.checks import Check
from saliency_bench.recipes.doctor.classes import (
    check_accuracy,
    check_classes,
    check_images,
    check_order,
    check_outputs,
)
from saliency_bench.recipes.doctor.examine import Examined, examine
from saliency_bench.recipes.doctor.maps import check_maps
from saliency_bench.recipes.doctor.masks import check_masks
from saliency_bench.recipes.doctor.next_commands import FIRST, check_cost, next_commands, run_explainers
from saliency_bench.recipes.doctor.preprocessing import check_preprocessing, reconciled
from saliency_bench.spec import RunSpec, one_after_the_other, takes_settings
from saliency_bench.utils.durations import seconds_of
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.progress import step, without_bars
from saliency_bench.utils.untouched import untouched

if TYPE_CHECKING:
    import pandas as pd

WITHIN = "2m"
WIDTH = 100  # characters per line of a finding
BATCH = 8
PREDICTING, MAPPING = 0.5, 0.9  # shares of the time limit after which no image is classified and no map is started
FORMAT = 1


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Result of `doctor`. Printing it shows the output of the command.

    Attributes:
        checks: Checks, each with a mark and a sentence.
        commands: Commands to run next.
        about: Names of the dataset and the model, number of images, and time in seconds.
    """

    checks: list[Check]
    commands: list[str]
    about: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Return whether no check is marked "wrong"."""
        return not self.marked("wrong")

    def marked(self, *marks: str) -> list[str]:
        """Return the names of the checks that have one of these marks."""
        return [check.name for check in self.checks if check.mark in marks]

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Return the rows of the table, including the header row."""
        rows = ((check.name, check.mark, check.sentence) for check in self.checks)
        return [("check", "mark", "finding"), *rows]

    @property
    def lines(self) -> list[str]:
        """Return the lines below the table, which state what to fix and which commands to run next."""
        wrong = self.marked("wrong")
        first = f"fix this first: {', '.join(wrong)}; then run:" if wrong else "nothing is wrong; run next:"
        return [first, "", one_after_the_other(self.commands)]

    @property
    def content(self) -> dict[str, Any]:
        """Return the diagnosis as a dict for JSON."""
        checks = [check.as_dict() for check in self.checks]
        return {"format": FORMAT, **self.about, "passed": self.passed, "checks": checks, "commands": self.commands}

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with one row per check. The columns are name, mark, text, fix and values."""
        import pandas as pd

        return pd.DataFrame([check.as_dict() for check in self.checks])

    def __repr__(self) -> str:
        wrapped = [
            (name, mark, line) if number == 0 else ("", "", line)
            for name, mark, text in self.rows
            for number, line in enumerate(wrap(text, WIDTH))
        ]
        return "\n".join([aligned(wrapped), "", *self.lines])

    def _repr_html_(self) -> str:
        header, *rows = self.rows
        return notebook_views.table(rows, header) + "".join(map(notebook_views.paragraph, filter(None, self.lines)))


@takes_settings("explainers", "metrics", "maps", "out", "keep_maps", "strict", "other_model", "other_label")
@untouched()
def doctor(
    *, within: str | float | None = WITHIN, batch_size: int = BATCH, progress: bool = True, **settings: Any
) -> Diagnosis:
    """Check a network and a dataset before a long run: labels, preprocessing, maps, masks, time and memory.

        sb.doctor(dataset="./photos", model="./net.py:make").passed

    Dataset and network are loaded as in `run`. The images are classified with the declared preprocessing and with
    alternatives. A paired test compares the declared preprocessing with the alternatives, and the declared order of the
    classes with other orders. Checks that judge accuracy need 20 images. With fewer images, or with too little time,
    they are undecided.

    Accuracies, masks and scores depend only on the seed and the number of images. The time limit determines the number
    of images (at most 256, or `limit`) and which explainers are tried. `within=None` uses all images and explainers.

    Args:
        within: Time limit after loading: "2m", "90s", a number of seconds, or None for no limit.
        batch_size: Samples per batch.
        progress: Whether to print a line per step.
        **settings: SETTINGS

    Raises:
        UserError: There is a problem that prevents the checks and that the caller can fix.
    """
    seconds = seconds_of(within)
    with modes_kept(settings), without_bars(not progress):
        given = dict(settings) | {"batch_size": batch_size, "explainers": [], "metrics": [], "out": FIRST}
        check_settings({key: value for key, value in given.items() if value is not None})
        spec, objects = describe(given)
        if accelerator_on(spec.device).num_processes > 1:
            raise UserError("`doctor` runs in a single process; run it without torchrun or accelerate launch")
        start = perf_counter()
        step("saliency-bench: loading the dataset and the network")
        data, model, refusal = _load(spec, objects)
        return _diagnosis(data, model, spec, refusal, start, inf if seconds is None else seconds)


def _load(spec: RunSpec, objects: Objects) -> tuple[SplitTable, RunModel, str]:
    """Return the samples, the network, and the reason why a run that explains the labels is rejected, or "".

    Raises:
        UserError: A run is rejected for every kind of target.
    """
    try:
        data, model, _ = load(spec, objects)
        return data, model, ""
    except UserError as error:
        if spec.target != "label":
            raise
        try:
            data, model, _ = load(spec.model_copy(update={"target": "predicted"}), objects)
            return data, model, one_line(error)
        except UserError:
            raise error from None


def _diagnosis(
    data: SplitTable, model: RunModel, spec: RunSpec, refusal: str, start: float, seconds: float
) -> Diagnosis:
    loaded = perf_counter()
    step("saliency-bench: classifying images with the declared preprocessing and with alternatives")
    examined = examine(data, model, PREDICTING * seconds)
    step(f"saliency-bench: explaining some of the {len(examined.rows)} images")
    report = check_maps(examined, loaded + MAPPING * seconds)
    masks = check_masks(examined)
    has_masks = bool(examined.scored)
    cost, limit = check_cost(examined, report, has_masks)
    spec = spec.model_copy(update={"target": data.spec.target})
    commands = next_commands(spec, run_explainers(examined, report), limit, has_masks)
    about = {
        "saliency_bench": __version__,
        "dataset": data.source.name,
        "split": data.spec.split,
        "model": model.name,
        "seed": spec.seed,
        "images": len(examined.rows),
        "seconds": {"loading": loaded - start, "checking": perf_counter() - loaded},
    }
    return Diagnosis([*_of_classes(examined, refusal), *report.checks, *masks, cost], commands, about)


def _of_classes(examined: Examined, refusal: str) -> list[Check]:
    """Return the checks that concern images, classes and preprocessing."""
    data, model, rows = examined.data, examined.model, examined.rows
    question = model.question
    accuracy = check_accuracy(data, question, rows)
    order, assignment = check_order(question, data.spec.seed, rows)
    return [
        check_images(data.count, rows),
        check_outputs(model.class_names, rows),
        check_classes(question, data.spec.label_map is not None, refusal, rows),
        *accuracy,
        *reconciled(order, assignment, check_preprocessing(examined), accuracy[0].mark),
    ]
