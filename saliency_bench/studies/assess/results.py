"""Results of an assessment: mean ratings per explainer and question, agreement of raters, and statistics per person."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from saliency_bench.read.analysis.tables import Findings, Table, dicts, finite_or_none
from saliency_bench.read.statistics.intervals import cluster_bootstrap, interval
from saliency_bench.studies.assess.questions import ABOUT
from saliency_bench.studies.attention_checks import dropped, note, nothing
from saliency_bench.studies.owner_actions import excluded
from saliency_bench.studies.result_rows import codes_of, numbered, write_rows
from saliency_bench.studies.run_images import HUMAN, pair_of
from saliency_bench.studies.study import Study

RATINGS = ("explainer", "question", "mean", "low", "high", "images", "ratings", "with everyone")
AGREEMENT = ("question", "krippendorff's alpha", "low", "high", "maps", "people")
OF_PEOPLE = ("person", "mean rating", "maps", "checks right", "checks", "median seconds")
EXPORT = ("image_id", "explainer", "person", "question", "rating", "place")


@dataclass(frozen=True)
class Rated:
    """Each person's last rating of each map, and the results of the attention checks.

    Attributes:
        ratings: One row per rating. The columns are image_id, explainer, person, place, seconds, created, and one for
            each question.
        checks: {person: whether each attention check was answered correctly}.
    """

    ratings: pd.DataFrame
    checks: dict[str, list[bool]]

    def without(self, people: set[str]) -> pd.DataFrame:
        """Return all ratings except those given by these people."""
        return self.ratings[~self.ratings["person"].isin(people)]


def rated(study: Study) -> Rated:
    """Load the ratings of a study.

    A person passes an attention check if all ratings of the map that belongs to a different image are in the lower half
    of the scale.
    """
    images, lowest = set(study.configuration["images"]), len(study.configuration["scale"]) // 2
    rows: list[dict[str, Any]] = []
    checks: dict[str, list[bool]] = {}
    for answer in study.answers(masks=False):
        image, explainer = pair_of(answer.unit)
        ratings = answer.payload["ratings"]
        if explainer is None:
            checks.setdefault(answer.person, []).append(max(ratings.values()) <= lowest)
        elif image in images:
            values = image, explainer, answer.person, answer.payload["place"], answer.seconds, answer.created
            rows.append(dict(zip(ABOUT, values, strict=True)) | ratings)
    return Rated(pd.DataFrame(rows, columns=[*ABOUT, *study.configuration["questions"]]), checks)


def results(study: Study, *, people: bool = True, with_failed: bool = False, exclude: Sequence[str] = ()) -> Findings:
    """Return mean ratings with intervals over clusters of images, and Krippendorff's ordinal alpha.

    If human masks were rated, they are the last row of each question. They are not included in alpha.

    Args:
        study: An assessment.
        people: Whether to show pseudonyms instead of numbers.
        with_failed: Whether to include the ratings of people who failed an attention check.
        exclude: People whose ratings are always excluded.

    Raises:
        UserError: There is no rating to include, or a name in `exclude` is unknown.
    """
    stored = rated(study)
    exclude = sorted({*exclude, *excluded(study)})
    without = dropped(stored.checks, study.people(), with_failed, exclude)
    kept = stored.without(without)
    if kept.empty:
        raise nothing(study.name, "rating", without, not stored.ratings.empty)
    by_person = _of_people(study, stored)
    tables = {
        "ratings": (RATINGS, _means(study, kept, stored.ratings)),
        "agreement": (AGREEMENT, _agreement(study, kept)),
        "people": (OF_PEOPLE, by_person if people else numbered(by_person)),
    }
    levels = study.configuration["scale"]
    data: dict[str, Any] = {"scale": levels, "questions": study.configuration["questions"]}
    data |= {name: dicts(header, rows) for name, (header, rows) in tables.items()}
    notes = [
        f"Ratings are from 1 ({levels[0]}) to {len(levels)} ({levels[-1]}). Alpha is 1 if raters agree perfectly and 0 "
        "if they agree only by chance."
    ]
    notes += note(stored.checks, "ratings", with_failed, exclude)
    written = [Table(header, rows, "" if name == "ratings" else name) for name, (header, rows) in tables.items()]
    return Findings("assess", written, data, notes)


def _means(study: Study, kept: pd.DataFrame, everyone: pd.DataFrame) -> list[tuple]:
    """Return the rows of the table RATINGS. Each question lists the best explainer first and human masks last."""
    limits = (1.0, float(len(study.configuration["scale"])))
    all_ratings = everyone.groupby("explainer")
    rows = []
    for question in study.configuration["questions"]:
        of_question = []
        for explainer, ratings in kept.groupby("explainer"):
            codes = codes_of(study, list(ratings["image_id"]))
            ends = map(finite_or_none, interval(ratings[question].to_numpy(float), codes, limits, study.seed)[:3])
            counts = ratings["image_id"].nunique(), len(ratings)
            mean_of_all = float(all_ratings.get_group(explainer)[question].mean())
            of_question.append((explainer, question, *ends, *counts, mean_of_all))
        rows += sorted(of_question, key=lambda row: (row[0] == HUMAN, -row[2]))
    return rows


def _of_people(study: Study, stored: Rated) -> list[tuple]:
    rows = []
    for person, ratings in stored.ratings.groupby("person"):
        checks = stored.checks.get(person, [])
        mean = float(ratings[list(study.configuration["questions"])].to_numpy().mean())
        rows.append((person, mean, len(ratings), sum(checks), len(checks), float(ratings["seconds"].median())))
    return rows


def _agreement(study: Study, kept: pd.DataFrame) -> list[tuple]:
    """Return the rows of the table AGREEMENT, computed from maps of explainers that several people have rated."""
    maps = ["image_id", "explainer"]
    ratings = kept[kept["explainer"] != HUMAN]
    ratings = ratings[ratings.groupby(maps)["person"].transform("size") > 1]
    if ratings.empty:
        return []
    levels = range(1, len(study.configuration["scale"]) + 1)
    units = ratings.groupby(maps).ngroup()
    images = ratings.groupby(maps).size().index.get_level_values("image_id")
    codes = codes_of(study, list(images))
    rows = []
    for question in study.configuration["questions"]:
        counts = pd.crosstab(units, ratings[question]).reindex(columns=levels, fill_value=0).to_numpy(float)
        alpha = cluster_bootstrap(partial(ordinal_alpha, counts), codes, study.seed)
        rows.append((question, *map(finite_or_none, alpha[:3]), len(images), ratings["person"].nunique()))
    return rows


def ordinal_alpha(counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Krippendorff's alpha for ordered levels, 1 - D_o / D_e, shape (D,), or NaN if all ratings are equal.

        o_ck = sum_u w_u n_uc (n_uk - [c = k]) / (m_u - 1),  n_c = sum_k o_ck,  n = sum_c n_c
        delta_ck = (sum_{g = c..k} n_g - (n_c + n_k) / 2)^2
        alpha = 1 - (n - 1) sum_ck o_ck delta_ck / sum_ck n_c n_k delta_ck

    Args:
        counts: Number of people who rated map u with level c, shape (U, L), at least two per map.
        weights: Weight of each map in each bootstrap draw, shape (D, U).
    """
    raters = counts.sum(axis=1)
    pairs = counts[:, :, None] * counts[:, None, :] - np.eye(counts.shape[1]) * counts[:, :, None]
    seen = np.einsum("du,uck->dck", weights, pairs / (raters - 1)[:, None, None])
    totals = seen.sum(axis=2)
    n = totals.sum(axis=1)
    below = np.cumsum(totals, axis=1) - totals / 2  # cumulative count up to the middle of each level
    delta = (below[:, :, None] - below[:, None, :]) ** 2
    observed = (seen * delta).sum(axis=(1, 2))
    expected = (totals[:, :, None] * totals[:, None, :] * delta).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected > 0, 1 - (n - 1) * observed / expected, np.nan)


def export(
    study: Study, path: Path, *, people: bool = True, with_failed: bool = False, exclude: Sequence[str] = ()
) -> int:
    """Write each person's last ratings as CSV or Parquet. There is one row per map, person and question.

    Return the number of rows.

    Args:
        study: An assessment.
        path: Output file.
        people: Whether to include pseudonyms. If False, people are numbered independently for each map, so that a
            person's ratings of different maps cannot be linked.
        with_failed: Whether to include the ratings of people who failed an attention check.
        exclude: People whose ratings are always excluded.

    Raises:
        UserError: The suffix is not supported, or a name in `exclude` is unknown.
    """
    stored = rated(study)
    ratings = stored.without(dropped(stored.checks, study.people(), with_failed, {*exclude, *excluded(study)}))
    if not people:
        numbers = ratings.groupby(["image_id", "explainer"]).cumcount() + 1
        ratings = ratings.assign(person=numbers.astype(str), place=None)
    long = ratings.melt(["image_id", "explainer", "person", "place"], list(study.configuration["questions"]),
                        "question", "rating")  # fmt: skip
    if not people:
        long = long.sort_values(["image_id", "explainer", "person", "question"])
    return write_rows(path, EXPORT, list(long[list(EXPORT)].itertuples(index=False, name=None)))
