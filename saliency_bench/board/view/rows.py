"""The rows of a board in the form that the page displays: as plain strings and numbers."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from saliency_bench import registry
from saliency_bench.board.known import HIDDEN, RUN
from saliency_bench.read.cell import RankSet
from saliency_bench.spec import PREDICTED_BY, TARGETS
from saliency_bench.utils.hashing import hash_of

if TYPE_CHECKING:  # these modules need torch
    from saliency_bench.board.row import Row

# {family: question that its metrics answer}, in the order of the page
FAMILIES: Final = {
    "alignment": "does the map highlight the region that people or the authors of the dataset marked?",
    "faithfulness": "does the network's output depend on what the map marks?",
    "sensitivity": "does the map change with the network, the class or the image as it should?",
    "other": "metrics that are not part of this version of saliency-bench",
}


@dataclass(frozen=True)
class ShownRow:
    """A row of a board, in the form that the page displays. Other attributes are documented in `board.row.Row`.

    Attributes:
        key: Key of the row in URLs.
        asks: Description of the settings that differ from the defaults, such as the target and the seed, or "".
        family: Family of the metric, one of FAMILIES.
        few: Whether the interval is based on few samples.
        approximate: Whether the interval is only approximate. This is the case if the score is unbounded and there are
            few clusters.
        rare: Whether the interval was widened because the samples do not rule out rare failures.
        passes: Number of forward passes needed to explain one image, or None if not stated.
        seconds: Time in seconds to explain one image on `device`, as reported by the submitter, or None if not stated.
        recomputed: Number of samples that the board has recomputed.
        beats: Baselines that the row beats. For rows that are not official, use the fields `..._if_true` instead.
        text: Lower-case text in which the search looks for matches.
    """

    key: str
    question: str
    asks: str
    dataset: str
    model: str
    explainer: str
    metric: str
    family: str
    higher_is_better: bool
    value: float | None
    low: float | None
    high: float | None
    n: int
    clusters: int
    few: bool
    approximate: bool
    rank: RankSet
    rank_if_true: RankSet
    unranked: str
    best: bool
    baseline: bool
    own_method: bool
    status: str
    why: str
    recomputed: int
    beats: tuple[str, ...]
    not_beaten: tuple[str, ...]
    not_comparable: str
    conflict: bool
    passes: float | None
    seconds: float | None
    device: str
    submitters: tuple[str, ...]
    text: str = ""
    rare: bool = False
    beats_if_true: tuple[str, ...] = ()
    not_beaten_if_true: tuple[str, ...] = ()
    same_as: tuple[str, ...] = ()
    suspicions: tuple[str, ...] = ()
    attempts: int | None = None

    @property
    def digits(self) -> int:
        """Return the number of decimals with which the score is displayed.

        Scores with hidden masks are already rounded.
        """
        return 3 if self.attempts is None else 2

    @property
    def has_samples(self) -> bool:
        """Return whether the row's samples have scores, which are needed to compare the row with another row."""
        return self.attempts is None and self.n > 0


def shown(row: "Row") -> ShownRow:
    """Convert a row of a board into the form that the page displays."""
    cell, result = row.cell, row.result
    used = result.dataset.used
    passes = cell.forward_passes.explain
    against, nothing = (row.beats, row.not_beaten), ((), ())
    official, if_true = (against, nothing) if row.status in (RUN, HIDDEN) else (nothing, against)
    return ShownRow(
        key=key_of(row), question=row.question, asks=_asks(row), dataset=row.dataset, model=row.model,
        explainer=cell.explainer_text, metric=cell.metric_text, family=family_of(cell.metric),
        higher_is_better=cell.higher_is_better, value=cell.value, low=cell.low, high=cell.high, n=cell.n,
        clusters=cell.clusters, few=cell.few, approximate=cell.approximate, rare=cell.rare, rank=row.rank,
        rank_if_true=row.rank_if_true, unranked=row.unranked, best=row.best, baseline=cell.baseline,
        own_method=row.own_method, status=row.status, why=row.why,
        recomputed=row.recomputed.samples if row.recomputed else 0, attempts=row.attempts,
        suspicions=row.suspicions,
        beats=official[0], not_beaten=official[1],
        beats_if_true=if_true[0], not_beaten_if_true=if_true[1], not_comparable=row.not_comparable,
        conflict=row.conflict, same_as=row.same_as,
        passes=passes / used if passes and used else None,
        seconds=row.seconds / used if row.seconds and used else None, device=result.provenance.device,
        submitters=row.submitters,
        text=" ".join((cell.explainer_text, cell.metric_text, row.dataset, row.model, *row.submitters)).casefold(),
    )  # fmt: skip


def key_of(row: "Row") -> str:
    """Return the key of a row. The key does not change when rows are added."""
    return hash_of(row.cell.cell_id, row.folder)


def _asks(row: "Row") -> str:
    """Describe the settings of a row that differ from the defaults, such as the target and the seed."""
    setting = row.result.setting
    rule, _, content = setting.target.partition(" ")
    if rule == PREDICTED_BY.rstrip(":"):
        rule = f"{PREDICTED_BY}{content[:8]}"  # a hash, because the name of the model or file is unverified
    elif rule not in TARGETS:
        rule = f"file {rule[:8]}"
    parts = [f"target {rule}"] if rule != "label" else []
    parts += [f"labels {setting.label_column}"] if setting.label_column != "label" else []
    parts += [f"masks {setting.mask_values}"] if setting.mask_values else []
    parts += [setting.activation] if setting.activation != "softmax" else []
    parts += [f"seed {setting.seed}"] if setting.seed else []
    parts += [setting.precision] if setting.precision != "fp32" else []
    parts += [f"layer {setting.layer}"] if setting.layer else []
    parts += [f"split {setting.split}"] if setting.split != "test" else []
    return ", ".join(parts)


@lru_cache(1000)  # reading the file of a metric takes a millisecond, and a board has thousands of rows
def family_of(metric: str) -> str:
    """Return the family of a metric, based on its inputs."""
    if metric not in registry.names("metrics"):
        return "other"
    needs = registry.asked_for("metrics", metric)
    if "masks" in needs:
        return "alignment"
    return "sensitivity" if "explain" in needs and "groups" not in needs else "faithfulness"


def short(name: str) -> str:
    """Shorten a name: drop the namespace of a Hub name, or the common prefix of a metric's name."""
    return name.rpartition("/")[2].removeprefix("folder:").removeprefix("saliency_")


def number(value: float | None, digits: int = 3) -> str:
    """Format a score, or return a dash if it is None."""
    return "–" if value is None else f"{value:.{digits}f}"


def amount(value: float | None) -> str:
    """Format a count or a time with three significant digits, or return a dash if it is None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
