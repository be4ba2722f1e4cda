"""A row of a board."""

from dataclasses import dataclass

from saliency_bench.board.known import Recomputed, Trust
from saliency_bench.board.submission_schema import Result
from saliency_bench.read.cell import CellResult, RankSet


@dataclass(frozen=True)
class Row:
    """A cell of a board with the values of one or several submissions.

    Attributes:
        cell: the numbers derived from the records, and the package's properties of explainer and metric.
        result: the result of its first submission: submitter, settings, provenance, note, link. Only settings are
            checked.
        question: hash of everything except the explainer; rows with the same hash can be compared.
        status: "run by the board": the owner of the board ran the explainer on images drawn at random; "scored by the
            board": the owner computed all scores from submitted maps, whose origin is unknown; "checked": consistent
            with itself, over exactly the samples of the dataset; "claimed": the board does not know the dataset or
            metric, or not all samples are covered. "scored by the board, hidden masks": the submission has no scores;
            the owner computed and rounded them.
        why: why its status is not better; else "".
        dataset: its name, given by the owner of the board if `named` contains "dataset", else by the submission.
        model: its name, likewise.
        named: which names the owner has given: "dataset", "model".
        own_method: whether the explainer is a submitter's own and not part of the package.
        submitters: everyone whose submissions agree.
        folders: folders of these submissions.
        recomputed: number of recomputed samples and the largest difference.
        suspicions: what the owner of the board should check before trusting the maps.
        attempts: number of attempts of its first submitter with the dataset's hidden masks; None if it was not scored
            with hidden masks.
        rank: its possible ranks among the rows that the board has run, or among the rows that it has scored with hidden
            masks; None for other rows.
        rank_if_true: for other rows that are not merely claimed, its possible ranks among the official rows if its
            scores and those of its submitter's other rows are true.
        unranked: why there is no official rank; else "".
        best: whether its official rank includes 1, it beats every baseline, and nearly all samples are scored.
        not_comparable: why it cannot be compared with any other row; else "".
        beats: the baselines that it beats, by the test that determines its ranks.
        not_beaten: the other baselines that it was tested against.
        conflict: whether another row of the same cell has other values.
        same_as: for a submitter's own method, methods with another name and exactly these scores, such as copied maps.
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
        """The score, or None."""
        return self.cell.value

    @property
    def low(self) -> float | None:
        """The lower end of the score's interval."""
        return self.cell.low

    @property
    def high(self) -> float | None:
        """The upper end of the score's interval."""
        return self.cell.high

    @property
    def n(self) -> int:
        """The number of samples with a score."""
        return self.cell.n

    @property
    def seconds(self) -> float | None:
        """Explainer run time in seconds as reported by the submitter, on `result.provenance.device`."""
        return self.result.seconds.get(self.cell.explainer_id)

    @property
    def folder(self) -> str:
        """The folder of the row's first submission."""
        return self.folders[0]
