"""A row of a board."""

from dataclasses import dataclass

from saliency_bench.board.known import Recomputed, Trust
from saliency_bench.board.submission_schema import Result
from saliency_bench.read.cell import CellResult, RankSet


@dataclass(frozen=True)
class Row:
    """A cell of a board, as one or several submissions have it.

    Attributes:
        cell: the numbers, as they follow from the records; what the package knows of explainer and metric.
        result: what its first submission says: who, settings, provenance, note, link; only settings are checked.
        question: hash of everything but the explainer; rows that share it can be compared.
        status: "run by the board": the owner of the board ran the explainer on images drawn at random; "scored by the
            board": the owner computed all scores from submitted maps, whose origin is not known; "checked": consistent
            with itself, over exactly the samples of the dataset; "claimed": dataset or metric are not known to the
            board, or not all samples are covered. "scored by the board, hidden masks": the submission has no scores;
            the owner computed them, and rounded them.
        why: why it has no better status; else "".
        dataset: its name, given by the owner of the board where `named` contains "dataset", else by the submission.
        model: its name, likewise.
        named: "dataset", "model": what the owner has named.
        own_method: whether the explainer is a submitter's own, none of the package.
        submitters: all whose submissions agree.
        folders: of these submissions.
        recomputed: on how many samples, and the largest difference.
        suspicions: what the owner of the board should look at before maps are believed.
        attempts: how many its first submitter has had with the hidden masks of the dataset; None where it was not
            scored with hidden masks.
        rank: the ranks that it may have among the rows that the board has run, or among those that it has scored with
            hidden masks; None for other rows.
        rank_if_true: for other rows that are not only claimed, the ranks that it may have beside those, if its scores
            and those of its submitter's other rows are true.
        unranked: why there is no official rank; else "".
        best: whether its official rank includes 1, it beats every baseline, and nearly all samples are scored.
        not_comparable: why it cannot be compared with any other row; else "".
        beats: the baselines that it beats, by the test that gives its ranks.
        not_beaten: the other baselines that it was tested against.
        conflict: whether another row of the same cell has other values.
        same_as: for a submitter's own method, methods of another name with exactly these scores, as copied maps have.
    """

    cell: CellResult
    result: Result
    question: str
    status: Trust
    why: str
    dataset: str
    model: str
    named: frozenset[str]
    own_method: bool
    submitters: tuple[str, ...]
    folders: tuple[str, ...]
    recomputed: Recomputed | None = None
    suspicions: tuple[str, ...] = ()
    attempts: int | None = None
    rank: RankSet = None
    rank_if_true: RankSet = None
    unranked: str = ""
    best: bool = False
    not_comparable: str = ""
    beats: tuple[str, ...] = ()
    not_beaten: tuple[str, ...] = ()
    conflict: bool = False
    same_as: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """The score; None where there is none."""
        return self.cell.value

    @property
    def low(self) -> float | None:
        """The lower end of its interval."""
        return self.cell.low

    @property
    def high(self) -> float | None:
        """The upper end of its interval."""
        return self.cell.high

    @property
    def n(self) -> int:
        """How many samples have a score."""
        return self.cell.n

    @property
    def seconds(self) -> float | None:
        """Explainer run time in seconds as reported by the submitter, on `result.provenance.device`."""
        return self.result.seconds.get(self.cell.explainer_id)

    @property
    def folder(self) -> str:
        """The folder of its first submission."""
        return self.folders[0]
