"""Compare how a metric and people order explainers, as in figure 7 of Lu et al. (2021).

The orders are based on the accuracies of networks and of people at each exposure (Lu et al., Crowdsourcing Evaluation
of Saliency-based XAI Methods, 2021). People see the most important pixels of an image according to a map, and then more
and more pixels until they name the class. Their answers are stored in a CSV or Parquet table with one row per answer:

    image_id    as in the dataset
    explainer   as in the run, with its options: "gradcam", "rise:masks=1000"
    exposure    fraction of the pixels that were shown, above 0 and at most 1
    person      any string that identifies the person
    right       true or false (in CSV, also 1 or 0); "I don't know" is false
    dataset     optional: name or fingerprint of the dataset that image_id belongs to. Ids may occur in more than one
                dataset, so answers that name their dataset count only for runs on this dataset

All answers of a person about an image and explainer form one judgement. People's accuracy at exposure r is the fraction
of judgements that are correct at or before r. `saliency_crowd_auc` is the area under this curve, which is 0 at r = 0.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from saliency_bench.errors import UserError, one_line
from saliency_bench.read.analysis.rankings import ENDS, FEWEST, OPEN, means_of, rank_correlations
from saliency_bench.read.analysis.tables import Findings, Table, dicts, finite_or_none
from saliency_bench.read.cell import CellResult
from saliency_bench.read.cell_table import MetricColumn
from saliency_bench.read.statistics.exposures import judgement_areas, right_by
from saliency_bench.read.statistics.intervals import Estimate, interval
from saliency_bench.utils.csv_text import unescaped
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.parquet_pages import check_pages, read_checked

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

COLUMNS = ("image_id", "explainer", "exposure", "person", "right")
DATASET = "dataset"  # optional column
AGREEMENT = ("dataset", "model", "metric", "exposure", *ENDS, "explainers", "n")
PEOPLE = ("dataset", "explainer", "saliency_crowd_auc", "low", "high", "images", "judgements")
ACCURACIES = ("dataset", "model", "metric", "explainer", "exposure", "automated", "people")
EXPOSURE = re.compile(r"(\d+(?:\.\d+)?(?:e-\d+)?)(?: training \d+)?")  # name of a part of a metric with exposures
Judgements = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Answers:
    """People's answers.

    Attributes:
        judgements: {explainer: {image id: exposure of the first correct answer of each judgement, NaN if no answer is
            correct}}.
        sha256: SHA-256 hash of the file.
        of_people: {person: {image id: exposures as in `judgements`}}, over all explainers that the person judged.
        by_dataset: {name or fingerprint of a dataset: its answers}, if the file names the datasets.
    """

    judgements: Judgements
    sha256: str
    of_people: Judgements = field(default_factory=dict)
    by_dataset: "dict[str, Answers]" = field(default_factory=dict)

    def about(self, run: "Run") -> "Answers":
        """Return the answers about the dataset of a run; all answers if the file does not name datasets."""
        if not self.by_dataset:
            return self
        dataset = run.summary["dataset"]
        names = [name for name in (dataset["id"], dataset["fingerprint"]) if name in self.by_dataset]
        return self.by_dataset[names[0]] if names else Answers({}, self.sha256)

    def right(self, explainer: str, ids: Sequence[str], exposures: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Return (number of judgements of each image (n,), number correct at or before each exposure (n, R))."""
        firsts = self.firsts(explainer, ids)
        right = [right_by(first_exposures, exposures).sum(axis=0) for first_exposures in firsts]
        return np.array([len(first_exposures) for first_exposures in firsts], float), np.array(right, float).reshape(
            len(ids), -1
        )

    def firsts(self, explainer: str, ids: Sequence[str]) -> list[np.ndarray]:
        """Return, for each image, the exposure at which each judgement became correct."""
        return [np.array(self.judgements.get(explainer, {}).get(image_id, [])) for image_id in ids]


def agreement(runs: Sequence["Run"], answers: str | Path | None = None) -> Findings:
    """Compare how a metric and people order explainers, at each exposure.

    The orders are compared by Spearman's rho and Kendall's tau-b. The accuracies of networks and of people are computed
    over the images for which people have judged the explainer. Baselines are included, and metrics are oriented so that
    higher is better. The intervals contain the values of all orders that are compatible with the images
    (`rank_correlations`).

    Args:
        runs: Runs with a metric whose parts are accuracies at exposures, such as saliency_kae.
        answers: CSV or Parquet file with the columns that are listed in the docstring of this module.

    Raises:
        UserError: The file lacks one of these columns, or no run has such a metric for three explainers that people
            have judged.
    """
    if answers is None:
        raise UserError(
            f"agreement needs a CSV or Parquet file with people's answers and the columns {', '.join(COLUMNS)}; "
            "pass it as answers (--answers)"
        )
    answers_read = read_answers(Path(answers))
    rows: list[tuple] = []
    people: list[tuple] = []
    accuracies: list[tuple] = []
    without: set[str] = set()
    answered = {image for exposures_by_image in answers_read.judgements.values() for image in exposures_by_image}
    if not answered & (run_ids := {image_id for run in runs for image_id in run.scores.ids}):
        raise UserError(
            f"no image of {answers} is in the runs: the file has ids such as {min(answered)}, but the runs have ids "
            f"such as {min(run_ids)}"
        )
    if not any(answers_read.about(run).judgements for run in runs):
        named = ", ".join(sorted(answers_read.by_dataset))
        raise UserError(f"{answers} has only answers about datasets that are not in the runs: {named}")
    for run in runs:
        about_run = answers_read.about(run)
        ids = [
            image_id
            for image_id in run.scores.ids
            if any(image_id in exposures_by_image for exposures_by_image in about_run.judgements.values())
        ]
        judged = [row for row in run.table.rows if row.name in about_run.judgements]
        without |= about_run.judgements.keys() - {row.name for row in run.table.rows}
        people += [_crowd(run, about_run, row.name, ids) for row in judged] if ids else []
        for column in run.table.columns if ids else ():
            cells = {row.name: cell for row in judged if (cell := run.table.cell(row, column))}
            metric_rows = _of_metric(run, column, cells, about_run, ids)
            rows, accuracies = rows + metric_rows[0], accuracies + metric_rows[1]
    if not rows:
        raise UserError(
            f"no run scores {FEWEST} of the explainers in {answers} with a metric that has a part per exposure, such "
            f"as saliency_kae; the file has the explainers {', '.join(sorted(answers_read.judgements))}"
        )
    notes = ["1: the metric and people put the explainers in the same order; baselines such as random are included."]
    notes.append(OPEN)
    notes += (
        [f"People also judged explainers that are not in the runs: {', '.join(sorted(without))}."] if without else []
    )
    if missing := answered - run_ids:
        notes.append(f"Not in the runs: {len(missing)} of {len(answered)} images with answers, such as {min(missing)}.")
    if len({frozenset(exposures_by_image) for exposures_by_image in answers_read.judgements.values()}) > 1:
        notes.append(
            "People judged the explainers on different images; for each explainer, only its own images are used."
        )
    tables = [Table(AGREEMENT, rows), Table(PEOPLE, people, "people"), Table(ACCURACIES, accuracies, "accuracies")]
    data = {"exposures": dicts(AGREEMENT, rows), "people": dicts(PEOPLE, people),
            "accuracies": dicts(ACCURACIES, accuracies), "answers": answers_read.sha256}  # fmt: skip
    return Findings("agreement", tables, data, notes)


def _of_metric(
    run: "Run", column: MetricColumn, cells: dict[str, CellResult], given: Answers, ids: list[str]
) -> tuple[list[tuple], list[tuple]]:
    """Return (rows of AGREEMENT, rows of ACCURACIES) of a metric; ([], []) if the metric has no exposures."""
    automated = _automated(run, cells, ids)
    if len(automated) < FEWEST or (exposures := list(next(iter(automated.values())))) == []:
        return [], []
    counts = {name: given.right(name, ids, exposures) for name in automated}
    for name, (judgements, _) in counts.items():  # both accuracies of an explainer refer to the same images
        automated[name] = {
            exposure: np.where(judgements > 0, accuracies_of_images, np.nan)
            for exposure, accuracies_of_images in automated[name].items()
        }
    codes = run.scores.codes(ids)
    sign = 1 if column.higher_is_better else -1
    about = *run.subject, column.name
    rows, accuracies = [], []
    for number, exposure in enumerate(exposures):
        values = np.stack([accuracies_of_images[exposure] for accuracies_of_images in automated.values()], axis=1)

        def people_accuracies(weights: np.ndarray, number: int = number) -> np.ndarray:
            return np.stack(
                [_share(weights, right[:, number], judged_images) for judged_images, right in counts.values()], axis=1
            )

        def both_means(weights: np.ndarray, values: np.ndarray = values) -> list[np.ndarray]:
            return [sign * means_of(values, weights), people_accuracies(weights)]

        once = np.ones((1, len(ids)))
        both = zip(automated, means_of(values, once)[0], people_accuracies(once)[0], strict=True)
        accuracies += [
            (*about, name, exposure, finite_or_none(share), finite_or_none(people)) for name, share, people in both
        ]
        estimates = rank_correlations(both_means, codes, run.seed)
        ends = [end for estimate in estimates for end in estimate.known]
        rows.append((*about, exposure, *ends, len(automated), len(ids)))
    return rows, accuracies


def _automated(run: "Run", cells: dict[str, CellResult], ids: Sequence[str]) -> dict[str, dict[float, np.ndarray]]:
    """Return {explainer: {exposure above 0: accuracies (n,), averaged over training runs}} of cells with exposures."""
    parts = {part: EXPOSURE.fullmatch(part) for cell in cells.values() for part in cell.parts}
    if not parts or not all(parts.values()):
        return {}
    shares = {part: float(match[1]) for part, match in parts.items() if match and float(match[1]) > 0}
    values = run.values_by_part({cell.cell_id for cell in cells.values()})
    order = [run.scores.position[image_id] for image_id in ids]
    by_explainer: dict[str, dict[float, np.ndarray]] = {}
    for name, cell in cells.items():
        by_exposure: dict[float, list[np.ndarray]] = {}
        for part, exposure in shares.items():
            by_exposure.setdefault(exposure, []).append(values[cell.cell_id][part][order])
        by_explainer[name] = {exposure: np.mean(trainings, axis=0) for exposure, trainings in by_exposure.items()}
    return by_explainer


def _share(weights: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the weighted share of judgements (draws,) for weights (draws, n); NaN if there are no judgements."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.einsum("dn,n->d", weights, part) / np.einsum("dn,n->d", weights, whole)


def _crowd(run: "Run", given: Answers, explainer: str, ids: Sequence[str]) -> tuple:
    firsts = given.firsts(explainer, ids)
    codes = run.scores.codes(ids)
    estimate = crowd_auc(firsts, codes, run.seed)
    judged = [len(first_exposures) for first_exposures in firsts]
    return run.subject[0], explainer, *estimate.known, sum(map(bool, judged)), sum(judged)


def crowd_auc(firsts: Sequence[np.ndarray], codes: np.ndarray, seed: int = 0) -> Estimate:
    """Return saliency_crowd_auc, the mean area over all judgements, with its interval.

    Args:
        firsts: For each image, the exposures of the first correct answers of its judgements, NaN if no answer is
            correct.
        codes: Cluster of each image.
        seed: As in `interval`.
    """
    areas = np.concatenate([judgement_areas(first_exposures) for first_exposures in firsts])
    return interval(areas, np.repeat(codes, [len(first_exposures) for first_exposures in firsts]), (0.0, 1.0), seed)


def read_answers(path: Path) -> Answers:
    """Read a table of answers. The UserError for invalid content names the file, and the row or column."""
    rows = _table(path).to_pylist()
    if not rows:
        raise UserError(f"{path} contains no answers")
    first: dict[tuple[str, str, str, str], float] = {}
    seen: set[tuple] = set()
    for number, row in enumerate(rows, 1):
        exposure, right = _checked(row, f"{path}, answer {number}")
        key = str(row.get(DATASET, "")), str(row["explainer"]), str(row["image_id"]), str(row["person"])
        if (*key, exposure) in seen:
            raise UserError(
                f"{path}, answer {number}: {key[3]} has already answered for {key[2]} at exposure {exposure:g}; "
                "remove one of the answers"
            )
        seen.add((*key, exposure))
        first[key] = np.fmin(first.get(key, np.nan), exposure if right else np.nan)
    answers = Answers({}, sha256_of(path))
    for (dataset, explainer, image_id, person), exposure in first.items():
        groups = [answers]
        if dataset:
            groups.append(answers.by_dataset.setdefault(dataset, Answers({}, answers.sha256)))
        for group in groups:
            group.judgements.setdefault(explainer, {}).setdefault(image_id, []).append(exposure)
            group.of_people.setdefault(person, {}).setdefault(image_id, []).append(exposure)
    return answers


def _table(path: Path) -> pa.Table:
    """Read the columns of a CSV or Parquet file of answers; raise UserError if the file cannot be read."""
    try:
        if path.suffix.lower() == ".parquet":
            about = pq.read_metadata(path)
            check_pages(path, about, at_once=True)
            table = read_checked(path, about, about.schema.to_arrow_schema().names)
        else:
            types = dict.fromkeys((*COLUMNS, DATASET), pa.string())
            texts = pa.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
            table = pa.csv.read_csv(path, convert_options=texts)
            for index, name in enumerate(table.column_names):
                # `csv_text` escapes some strings with an apostrophe.
                if name in types and pc.any(pc.starts_with(table[name], "'")).as_py():
                    values = [value and unescaped(value) for value in table[name].to_pylist()]
                    table = table.set_column(index, name, pa.array(values, pa.string()))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as CSV or Parquet: {one_line(error)}") from error
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise UserError(f"{path} has no column {missing[0]}; a table of answers has {', '.join(COLUMNS)}")
    return table.select([*COLUMNS, *({DATASET} & set(table.column_names))])


RIGHT: dict[Any, bool] = {"true": True, "1": True, "false": False, "0": False}


def _checked(row: dict[str, Any], where: str) -> tuple[float, bool]:
    """Return (exposure, right) of a row; raise UserError for an invalid value."""
    for name in row:
        if row[name] is None or row[name] == "":
            raise UserError(f"{where}: {name} is empty")
    try:
        exposure = float(row["exposure"])
    except ValueError:
        exposure = np.nan
    if not 0 < exposure <= 1:
        raise UserError(f"{where}: exposure must be above 0 and at most 1; got {row['exposure']}")
    if (right := RIGHT.get(str(row["right"]).lower())) is None:
        raise UserError(f"{where}: right must be true or false; got {row['right']}")
    return exposure, right
