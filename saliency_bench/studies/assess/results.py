"""What people's ratings come to: a mean per explainer and question, and how far the raters agree."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from saliency_bench.analysis.tables import Findings, Table, dicts, known
from saliency_bench.errors import UserError
from saliency_bench.results.clusters import cluster_codes
from saliency_bench.results.intervals import cluster_bootstrap, interval
from saliency_bench.studies.run_images import pair_of
from saliency_bench.studies.study import Answer, Study
from saliency_bench.utils.files import write_with

RATINGS = ("explainer", "question", "mean", "low", "high", "images", "ratings")
AGREEMENT = ("question", "krippendorff's alpha", "low", "high", "maps", "people")
EXPORT = ("image_id", "explainer", "person", "question", "rating", "place")


def results(study: Study) -> Findings:
    """Mean ratings with intervals, of which the unit is the cluster of images, and Krippendorff's alpha (ordinal).

    Raises: UserError for a study without a rating.
    """
    answers = study.answers(masks=False)
    if not answers:
        raise UserError(f"study {study.name} has no rating yet")
    ratings = _means(study, answers)
    agreement = _agreement(study, answers)
    data: dict[str, Any] = {
        "scale": study.configuration["scale"],
        "questions": study.configuration["questions"],
        "ratings": dicts(RATINGS, ratings),
        "agreement": dicts(AGREEMENT, agreement),
    }
    levels = study.configuration["scale"]
    notes = [f"Ratings from 1, {levels[0]}, to {len(levels)}, {levels[-1]}. Alpha: 1 raters agree, 0 as by chance."]
    tables = [Table(RATINGS, ratings), Table(AGREEMENT, agreement, "agreement")]
    return Findings("assess", tables, data, notes)


def _means(study: Study, answers: Sequence[Answer]) -> list[tuple]:
    """Rows of RATINGS, question by question, the best explainer first."""
    limits = (1.0, float(len(study.configuration["scale"])))
    rows = []
    for question in study.configuration["questions"]:
        found = []
        for explainer in study.configuration["explainers"]:
            own = [(pair_of(one.unit)[0], one) for one in answers if pair_of(one.unit)[1] == explainer]
            if own:
                codes = _codes(study, [image for image, _ in own])
                values = np.array([one.payload["ratings"][question] for _, one in own], float)
                ends = map(known, interval(values, codes, limits, study.seed)[:3])
                found.append((explainer, question, *ends, len({image for image, _ in own}), len(own)))
        rows += sorted(found, key=lambda row: -row[2])
    return rows


def _codes(study: Study, images: Sequence[str]) -> np.ndarray:
    groups = study.configuration["groups"]
    return cluster_codes(images, [groups.get(image) for image in images])


def _agreement(study: Study, answers: Sequence[Answer]) -> list[tuple]:
    """Rows of AGREEMENT, over maps that several people rated."""
    by_map: dict[str, list[Answer]] = {}
    for one in answers:
        by_map.setdefault(one.unit, []).append(one)
    several = {unit: own for unit, own in by_map.items() if len(own) > 1}
    if not several:
        return []
    codes = _codes(study, [pair_of(unit)[0] for unit in several])
    people = len({one.person for own in several.values() for one in own})
    rows = []
    for question in study.configuration["questions"]:
        counts = np.zeros((len(several), len(study.configuration["scale"])))
        for number, own in enumerate(several.values()):
            for one in own:
                counts[number, one.payload["ratings"][question] - 1] += 1
        found = cluster_bootstrap(partial(ordinal_alpha, counts), codes, study.seed)
        rows.append((question, *map(known, found[:3]), len(several), people))
    return rows


def ordinal_alpha(counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(D,) Krippendorff's alpha for ordered levels, 1 - D_o / D_e; NaN where all ratings are on one level.

        o_ck = sum_u w_u n_uc (n_uk - [c = k]) / (m_u - 1),  n_c = sum_k o_ck,  n = sum_c n_c
        delta_ck = (sum_{g = c..k} n_g - (n_c + n_k) / 2)^2
        alpha = 1 - (n - 1) sum_ck o_ck delta_ck / sum_ck n_c n_k delta_ck

    counts: (U, L), how many people put map u on level c, at least two for each map. weights: (D, U), how often each map
    counts in each draw.
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


def export(study: Study, path: Path, *, people: bool = True) -> int:
    """Write the last ratings as CSV or Parquet, a row per map, person and question; returns the number of rows.

    people: False numbers the people of each map anew, so that nobody's ratings can be put together.
    Raises: UserError for another suffix.
    """
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"{path} is neither .csv nor .parquet")
    numbers: dict[str, int] = {}
    rows = []
    for one in study.answers(masks=False):
        image, explainer = pair_of(one.unit)
        number = numbers[one.unit] = numbers.get(one.unit, 0) + 1
        name, place = (one.person, one.payload["place"]) if people else (str(number), None)
        rows += [
            (image, explainer, name, question, rating, place) for question, rating in one.payload["ratings"].items()
        ]
    if not people:
        rows.sort(key=lambda row: row[:4])
    table = pa.table({name: [row[index] for row in rows] for index, name in enumerate(EXPORT)})
    write = pa.csv.write_csv if path.suffix.lower() == ".csv" else pq.write_table
    write_with(path, lambda temporary: write(table, temporary))
    return len(rows)
