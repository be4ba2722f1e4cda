"""Data class that represents a row of a board."""

from dataclasses import dataclass

from saliency_bench.board.known import Recomputed, Trust
from saliency_bench.board.submission_schema import Result
from saliency_bench.read.cell import CellResult, RankSet


@dataclass(frozen=True)
class Row:
    """A cell of a board with the values of one or several submissions.

    Attributes:
        cell: Numbers derived from the records, and the properties that the package declares for the explainer and the
            metric.
        result: Result of the first submission: submitter, settings, provenance, note and link. Of these, only the
            settings are checked.
        question: Hash of everything that determines the scores, except the explainer. Rows with the same hash can be
            compared.
        status: "run by the board": the owner of the board ran the explainer on images drawn at random. "scored by the
            board": the owner computed all scores from submitted maps, whose origin is unknown. "scored by the board,
            hidden masks": the owner computed and rounded all scores, because the submission contains none. "checked":
            the submission is consistent and contains exactly the samples of the dataset. "claimed": the dataset or
            metric is unknown to the board, or samples are missing.
        why: Reason why the status is not better, or "".
        dataset: Name of the dataset, set by the owner of the board if `named` contains "dataset", otherwise by the
            submission.
        model: Name of the model, set by the owner of the board if `named` contains "model", otherwise by the
            submission.
        named: Names that the owner has set: "dataset", "model".
        own_method: Whether the explainer is a submitter's method and not part of the package.
        submitters: All submitters who submitted these values.
        folders: Folders of their submissions.
        recomputed: Number of recomputed samples, and the largest difference from the submitted scores.
        suspicions: Warnings that the owner of the board should check before trusting the maps.
        attempts: Number of attempts of the first submitter with the dataset's hidden masks, or None if the row was not
            scored with hidden masks.
        rank: Possible ranks among the rows whose explainer the board has run, or among the rows whose maps were scored
            with hidden masks. None for other rows.
        rank_if_true: Possible ranks among the official rows, assuming that the scores of all rows of this submitter are
            true. Set for rows that have no official rank and whose status is better than "claimed".
        unranked: Reason why there is no official rank, or "".
        best: Whether the official rank includes 1, the row beats every baseline, and nearly all samples are scored.
        not_comparable: Reason why the row cannot be compared with any other row, or "".
        beats: Baselines that the row beats in the test that determines the ranks.
        not_beaten: Baselines that the row was tested against but does not beat.
        conflict: Whether another row of the same cell has different values.
        same_as: For a submitter's method, the methods that have a different name but exactly the same scores, which
            suggests copied maps.
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
        """Lower end of the score's interval."""
        return self.cell.low

    @property
    def high(self) -> float | None:
        """Upper end of the score's interval."""
        return self.cell.high

    @property
    def n(self) -> int:
        """Number of samples with a score."""
        return self.cell.n

    @property
    def seconds(self) -> float | None:
        """Run time of the explainer in seconds, as reported by the submitter, on `result.provenance.device`."""
        return self.result.seconds.get(self.cell.explainer_id)

    @property
    def accuracy_checked(self) -> bool:
        """Return whether the board has recomputed the model's accuracy.

        This requires all samples of the dataset.
        """
        dataset = self.result.dataset
        return self.recomputed is not None and dataset.used == dataset.samples

    @property
    def folder(self) -> str:
        """Folder of the row's first submission."""
        return self.folders[0]
