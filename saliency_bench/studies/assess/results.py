"""Results of an assessment: mean ratings per explainer and question, agreement of raters, people."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.analysis.tables import Findings, Table, dicts, finite_or_none
from saliency_bench.errors import UserError
from saliency_bench.results.intervals import cluster_bootstrap, interval
from saliency_bench.studies.attention_checks import failed, note
from saliency_bench.studies.result_rows import codes_of, numbered, write_rows
from saliency_bench.studies.run_images import HUMAN, pair_of
from saliency_bench.studies.study import Answer, Study

RATINGS = ("explainer", "question", "mean", "low", "high", "images", "ratings")
AGREEMENT = ("question", "krippendorff's alpha", "low", "high", "maps", "people")
OF_PEOPLE = ("person", "mean rating", "maps", "checks right", "checks", "median seconds")
EXPORT = ("image_id", "explainer", "person", "question", "rating", "place")


@dataclass(frozen=True)
class Rated:
    """The last ratings of each person and map.

    Attributes:
        ratings: the answers.
        checks: {person: whether each attention check was right}.
    """

    ratings: list[Answer]
    checks: dict[str, list[bool]]


def rated(study: Study, *, without_failed: bool = False) -> Rated:
    """Return the stored ratings of a study.

    The other image's map of an attention check is answered correctly by ratings in the lower half of the scale alone.

    Args:
        study: an assessment.
        without_failed: leave out the ratings of people who failed a check.
    """
    images, lowest = set(study.configuration["images"]), len(study.configuration["scale"]) // 2
    ratings: list[Answer] = []
    checks: dict[str, list[bool]] = {}
    for answer in study.answers(masks=False):
        image, explainer = pair_of(answer.unit)
        if explainer is None:
            checks.setdefault(answer.person, []).append(max(answer.payload["ratings"].values()) <= lowest)
        elif image in images:
            ratings.append(answer)
    dropped = set(failed(checks)) if without_failed else set()
    return Rated([answer for answer in ratings if answer.person not in dropped], checks)


def results(study: Study, *, people: bool = True, without_failed: bool = False) -> Findings:
    """Return mean ratings with intervals, whose unit is the cluster of images, and Krippendorff's ordinal alpha.

    The human masks, where they were rated, are the last row of each question, and no part of alpha.

    Args:
        study: an assessment.
        people: False gives numbers instead of pseudonyms.
        without_failed: leave out the ratings of people who failed an attention check.

    Raises:
        UserError: There is no rating.
    """
    stored = rated(study, without_failed=without_failed)
    if not stored.ratings:
        raise UserError(f"study {study.name} has no rating yet")
    by_person = _of_people(stored)
    tables = {
        "ratings": (RATINGS, _means(study, stored.ratings)),
        "agreement": (AGREEMENT, _agreement(study, stored.ratings)),
        "people": (OF_PEOPLE, by_person if people else numbered(by_person)),
    }
    levels = study.configuration["scale"]
    data: dict[str, Any] = {"scale": levels, "questions": study.configuration["questions"]}
    data |= {name: dicts(header, rows) for name, (header, rows) in tables.items()}
    notes = [f"Ratings from 1, {levels[0]}, to {len(levels)}, {levels[-1]}. Alpha: 1 raters agree, 0 as by chance."]
    notes += note(stored.checks, "ratings", without_failed)
    written = [Table(header, rows, "" if name == "ratings" else name) for name, (header, rows) in tables.items()]
    return Findings("assess", written, data, notes)


def _means(study: Study, answers: Sequence[Answer]) -> list[tuple]:
    """Return rows of RATINGS, question by question, the best explainer first and the human masks last."""
    limits = (1.0, float(len(study.configuration["scale"])))
    names = [*study.configuration["explainers"], *([HUMAN] if study.configuration["masks"] else [])]
    rows = []
    for question in study.configuration["questions"]:
        of_question = []
        for explainer in names:
            rated_images = [
                (pair_of(answer.unit)[0], answer) for answer in answers if pair_of(answer.unit)[1] == explainer
            ]
            if rated_images:
                codes = codes_of(study, [image for image, _ in rated_images])
                values = np.array([answer.payload["ratings"][question] for _, answer in rated_images], float)
                ends = map(finite_or_none, interval(values, codes, limits, study.seed)[:3])
                of_question.append(
                    (explainer, question, *ends, len({image for image, _ in rated_images}), len(rated_images))
                )
        rows += sorted(of_question, key=lambda row: (_is_human(study, row[0]), -row[2]))
    return rows


def _is_human(study: Study, explainer: str | None) -> bool:
    """Return whether this stands for the human masks."""
    return study.configuration["masks"] and explainer == HUMAN


def _of_people(stored: Rated) -> list[tuple]:
    """Return rows of OF_PEOPLE."""
    by_person: dict[str, list[Answer]] = {}
    for answer in stored.ratings:
        by_person.setdefault(answer.person, []).append(answer)
    rows = []
    for person, of_person in sorted(by_person.items()):
        right = stored.checks.get(person, [])
        mean = float(np.mean([rating for answer in of_person for rating in answer.payload["ratings"].values()]))
        seconds = float(np.median([answer.seconds for answer in of_person]))
        rows.append((person, mean, len(of_person), sum(right), len(right), seconds))
    return rows


def _agreement(study: Study, answers: Sequence[Answer]) -> list[tuple]:
    """Return rows of AGREEMENT, over the maps of explainers that several people rated."""
    by_map: dict[str, list[Answer]] = {}
    for answer in answers:
        if not _is_human(study, pair_of(answer.unit)[1]):
            by_map.setdefault(answer.unit, []).append(answer)
    several = {unit: of_map for unit, of_map in by_map.items() if len(of_map) > 1}
    if not several:
        return []
    codes = codes_of(study, [pair_of(unit)[0] for unit in several])
    people = len({answer.person for of_map in several.values() for answer in of_map})
    rows = []
    for question in study.configuration["questions"]:
        counts = np.zeros((len(several), len(study.configuration["scale"])))
        for number, of_map in enumerate(several.values()):
            for answer in of_map:
                counts[number, answer.payload["ratings"][question] - 1] += 1
        alpha = cluster_bootstrap(partial(ordinal_alpha, counts), codes, study.seed)
        rows.append((question, *map(finite_or_none, alpha[:3]), len(several), people))
    return rows


def ordinal_alpha(counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return (D,) Krippendorff's alpha for ordered levels, 1 - D_o / D_e; NaN where all ratings are on one level.

        o_ck = sum_u w_u n_uc (n_uk - [c = k]) / (m_u - 1),  n_c = sum_k o_ck,  n = sum_c n_c
        delta_ck = (sum_{g = c..k} n_g - (n_c + n_k) / 2)^2
        alpha = 1 - (n - 1) sum_ck o_ck delta_ck / sum_ck n_c n_k delta_ck

    Args:
        counts: (U, L), how many people put map u on level c, at least two for each map.
        weights: (D, U), how often each map counts in each draw.
    """
    raters = counts.sum(axis=1)
    pairs = counts[:, :, None] * counts[:, None, :] - np.eye(counts.shape[1]) * counts[:, :, None]
    seen = np.einsum("du,uck->dck", weights, pairs / (raters - 1)[:, None, None])
    totals = seen.sum(axis=2)
    n = totals.sum(axis=1)
    below = np.cumsum(totals, axis=1) - totals / 2  # up to the middle of each level
    delta = (below[:, :, None] - below[:, None, :]) ** 2
    observed = (seen * delta).sum(axis=(1, 2))
    expected = (totals[:, :, None] * totals[:, None, :] * delta).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected > 0, 1 - (n - 1) * observed / expected, np.nan)


def export(study: Study, path: Path, *, people: bool = True, without_failed: bool = False) -> int:
    """Write the last ratings as CSV or Parquet, a row per map, person and question; return the number of rows.

    Args:
        study: an assessment.
        path: the file.
        people: False numbers the people of each map anew, so that nobody's ratings can be put together.
        without_failed: leave out the ratings of people who failed an attention check.

    Raises:
        UserError: The suffix is another one.
    """
    numbers: dict[str, int] = {}
    rows = []
    for answer in rated(study, without_failed=without_failed).ratings:
        image, explainer = pair_of(answer.unit)
        number = numbers[answer.unit] = numbers.get(answer.unit, 0) + 1
        name, place = (answer.person, answer.payload["place"]) if people else (str(number), None)
        rows += [
            (image, explainer, name, question, rating, place) for question, rating in answer.payload["ratings"].items()
        ]
    if not people:
        rows.sort(key=lambda row: row[:4])
    return write_rows(path, EXPORT, rows)
