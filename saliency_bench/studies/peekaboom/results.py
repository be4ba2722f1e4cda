"""Results of peek-a-boom: accuracy curves and their areas, the number of judgements needed, and statistics per person.

The results correspond to those of Lu et al. (2021) in figures 5 and 6 and in the rows for crowd workers of tables 2 and
3. Only finished judgements count. A judgement is finished after a correct answer, or after the entire image was
displayed and no answer was correct. A judgement without a correct answer is called *never right* and counts as wrong at
every exposure. Judgements of people who failed an attention check are excluded unless requested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from saliency_bench.read.analysis.order_agreement import COLUMNS, DATASET, crowd_auc
from saliency_bench.read.analysis.tables import Findings, Table, dicts, finite_or_none
from saliency_bench.read.cell import rank_text
from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.exposures import judgement_areas, right_by
from saliency_bench.read.statistics.intervals import difference, interval
from saliency_bench.read.statistics.paired_test import adjusted_p
from saliency_bench.read.statistics.ranking import RANKED_FROM, TOO_FEW, rank_sets, sign_of
from saliency_bench.studies.attention_checks import dropped, note, nothing
from saliency_bench.studies.owner_actions import excluded
from saliency_bench.studies.peekaboom.chance import (
    LIKE_GUESSING,
    corrected,
    evidence_of_guessing,
    guessing_accuracy,
    guessing_area,
)
from saliency_bench.studies.peekaboom.protocol import by_judgement, has_ended, strikes
from saliency_bench.studies.result_rows import codes_of, numbered, write_rows
from saliency_bench.studies.run_images import pair_of
from saliency_bench.studies.study import Answer, Study
from saliency_bench.utils.seeds import random_bits, seed_of

NUMBERS = (0.3, 0.5, 1.0, 3.0, 5.0, 7.0, 10.0)  # numbers of judgements per image and explainer, as in table 3
DRAWS = 1000
GUESSING = "guessing"  # name of the row for guessing
CROWD = ("explainer", "saliency_crowd_auc", "low", "high", "corrected", "rank", "images", "judgements", "never right",
         "with everyone")  # fmt: skip
CURVES = ("explainer", "exposure", "accuracy", "low", "high", "judgements")
FEWER = ("judgements per pair", "explainer", "saliency_crowd_auc", "2.5 %", "97.5 %", "same order")
OF_IMAGES = ("image_id", "mean exposure", "right", "judgements")
OF_PEOPLE = ("person", "mean exposure", "right", "judgements", "checks right", "checks", "like guessing",
             "median seconds")  # fmt: skip
JUDGEMENT = ("person", "image", "explainer", "first", "seconds", "created")
ATTEMPT = ("person", "explainer", "exposure", "right", "chance")


@dataclass(frozen=True)
class Judged:
    """The judgements that a study has stored.

    Attributes:
        judgements: One row per finished judgement. The columns are person, image, explainer, first (exposure at which
            the answer was correct, or NaN), seconds (total time of all answers), and created (time of the last answer).
        attempts: One row for each answer with a label, and for each "I don't know" given when the entire image is
            displayed. The columns are person, explainer ("" for attention checks), exposure, right, and chance
            (probability that a guess is correct).
        checks: {person: whether each attention check was answered correctly}.
        unfinished: Number of unfinished judgements.
    """

    judgements: pd.DataFrame
    attempts: pd.DataFrame
    checks: dict[str, list[bool]]
    unfinished: int

    def without(self, people: set[str]) -> pd.DataFrame:
        """Return all judgements except those made by these people."""
        return self.judgements[~self.judgements["person"].isin(people)]


def judged(study: Study) -> Judged:
    """Load the judgements of a study."""
    exposures, unfinished = len(study.configuration["exposures"]), 0
    judgements: list[tuple] = []
    attempts: list[tuple] = []
    checks: dict[str, list[bool]] = {}
    for (person, unit), steps in by_judgement(study.answers(last=False)).items():
        image, explainer = pair_of(unit)
        last = steps[-1].payload
        attempts += [(person, explainer or "", *attempt) for attempt in _attempts(study, steps)]
        if explainer is None:
            checks.setdefault(person, []).append(last["right"])
        elif not has_ended(steps, exposures):
            unfinished += 1
        else:
            first = last["exposure"] if last["right"] else np.nan
            seconds = sum(step.seconds for step in steps)
            judgements.append((person, image, explainer, first, seconds, steps[-1].created))
    return Judged(
        pd.DataFrame(judgements, columns=JUDGEMENT), pd.DataFrame(attempts, columns=ATTEMPT), checks, unfinished
    )


def _attempts(study: Study, steps: Sequence[Answer]) -> list[tuple[float, bool, float]]:
    """For the answers in a judgement that help to detect guessing, return (exposure, right, chance of a guess)."""
    choices, attempts = study.configuration["choices"], []
    tried = 0
    for step in steps:
        exposure, choice = step.payload["exposure"], step.payload["choice"]
        if choice is not None or exposure == 1:
            attempts.append((exposure, step.payload["right"], 1 / (choices - tried if strikes(study) else choices)))
        tried += choice is not None
    return attempts


def results(study: Study, *, people: bool = True, with_failed: bool = False, exclude: Sequence[str] = ()) -> Findings:
    """Return the result tables, which are computed from the finished judgements.

    Args:
        study: A peek-a-boom study.
        people: Whether to show pseudonyms instead of numbers.
        with_failed: Whether to include the judgements of people who failed an attention check.
        exclude: People whose judgements are always excluded.

    Raises:
        UserError: There is no finished judgement to include, or a name in `exclude` is unknown.
    """
    answers = judged(study)
    exclude = sorted({*exclude, *excluded(study)})
    without = dropped(answers.checks, study.people(), with_failed, exclude)
    kept = answers.without(without)
    if kept.empty:
        raise nothing(study.name, "judgement", without, not answers.judgements.empty)
    by_explainer = _by_explainer(study, kept)
    everyone = {name: rows["first"] for name, rows in _by_explainer(study, answers.judgements).items()}
    crowd, order = _crowd(study, by_explainer, everyone)
    evidence = evidence_of_guessing(answers.attempts)
    persons = _of_people(answers, evidence)
    tables = {
        "": (CROWD, crowd),
        "accuracies": (CURVES, _curves(study, by_explainer)),
        "judgements": (FEWER, _with_fewer(study, by_explainer)),
        "images": (OF_IMAGES, [(image, *_mean_exposure(rows["first"])) for image, rows in kept.groupby("image")]),
        "people": (OF_PEOPLE, persons if people else numbered(persons)),
    }
    data: dict[str, Any] = {name or "crowd": dicts(header, rows) for name, (header, rows) in tables.items()}
    notes = [order] if order else []
    if answers.unfinished:
        notes.append(f"Unfinished judgements, which are excluded: {answers.unfinished}.")
    notes += note(answers.checks, "judgements", with_failed, exclude)
    notes += _guessers(evidence, people)
    return Findings("peekaboom", [Table(header, rows, name) for name, (header, rows) in tables.items()], data, notes)


def _by_explainer(study: Study, judgements: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return {explainer: judgements} in the order of the study. Explainers without judgements are left out."""
    groups = dict(iter(judgements.groupby("explainer")))
    return {name: groups[name] for name in study.configuration["explainers"] if name in groups}


def _guessers(evidence: dict[str, float], people: bool) -> list[str]:
    names = sorted(person for person, ratio in evidence.items() if ratio >= LIKE_GUESSING)
    if not names:
        return []
    shown = ", ".join(names) if people else f"{len(names)} people"
    return [f"People who answer like guessers (their answers are at least 10 times as likely for a guesser as for one "
            f"of the others): {shown}; to exclude a person, add --exclude NAME."]  # fmt: skip


def _crowd(
    study: Study, by_explainer: dict[str, pd.DataFrame], everyone: dict[str, pd.Series]
) -> tuple[list[tuple], str]:
    """Return (rows of the table CROWD, reason why there are no ranks or "").

    The best explainer comes first and guessing last.
    """
    settings = study.configuration
    images = sorted({image for rows in by_explainer.values() for image in rows["image"]})
    codes = codes_of(study, images)
    guessing = guessing_area(settings["choices"], settings["exposures"], strikes(study))
    areas, means = [], []
    for rows in by_explainer.values():
        groups = dict(iter(rows.groupby("image")["first"]))
        firsts = [groups[image].to_numpy() if image in groups else np.empty(0) for image in images]
        areas.append(crowd_auc(firsts, codes, study.seed))
        means.append(np.array([judgement_areas(first).mean() if len(first) else np.nan for first in firsts]))
    ranks = _ranks(list(by_explainer), means, codes, study.seed)
    rows = [
        (
            name,
            *map(finite_or_none, area[:3]),
            corrected(area.value, guessing, settings["exposures"]),
            ranks.get(name, TOO_FEW),
            judgements["image"].nunique(),
            len(judgements),
            int(judgements["first"].isna().sum()),
            float(judgement_areas(everyone[name].to_numpy()).mean()),
        )
        for (name, judgements), area in zip(by_explainer.items(), areas, strict=True)
    ]
    rows.sort(key=lambda row: -row[1])
    order = "" if ranks else f"Ranks require {RANKED_FROM} images on which both explainers of a pair were judged."
    return [*rows, (GUESSING, guessing, None, None, 0.0, "", None, None, None, None)], order


def _ranks(names: list[str], means: list[np.ndarray], codes: np.ndarray, seed: int) -> dict[str, str]:
    """Return {explainer: rank set as text}, or {} if there are too few clusters.

    The paired test compares clusters of images.
    """
    matched = Matched(means, codes, (0.0, 1.0))
    pairs = list(combinations(range(len(names)), 2))
    differences = {pair: difference(matched, *pair) for pair in pairs}
    matched.forget()
    if any(difference.effective < RANKED_FROM for difference in differences.values()):
        return {}
    decided: list[tuple[str, str]] = []
    for (first, second), p in adjusted_p([matched], [pairs], seed=seed)[0].items():
        if sign := sign_of(differences[first, second].value, p, True):
            decided.append((names[first], names[second]) if sign > 0 else (names[second], names[first]))
    sets = rank_sets(names, decided)
    return {name: rank_text(ranks) for name, ranks in sets.items()}


def _curves(study: Study, by_explainer: dict[str, pd.DataFrame]) -> list[tuple]:
    """Return the rows of the table CURVES, in which guessing comes last.

    Intervals are computed over clusters of images.
    """
    settings = study.configuration
    exposures = settings["exposures"]
    rows: list[tuple] = []
    for name, judgements in by_explainer.items():
        right = right_by(judgements["first"].to_numpy(), exposures).astype(float)
        codes = codes_of(study, list(judgements["image"]))
        for exposure, column in zip(exposures, right.T, strict=True):
            estimate = interval(column, codes, (0.0, 1.0), study.seed)
            rows.append((name, exposure, *map(finite_or_none, estimate[:3]), len(judgements)))
    by_chance = guessing_accuracy(settings["choices"], exposures, strikes(study)).tolist()
    return rows + [(GUESSING, *pair, None, None, None) for pair in zip(exposures, by_chance, strict=True)]


def _with_fewer(study: Study, by_explainer: dict[str, pd.DataFrame]) -> list[tuple]:
    """Return the rows of the table FEWER.

    The table contains results for smaller numbers of judgements per pair. Judgements are drawn at random `DRAWS` times.

    The column "same order" contains the fraction of draws in which the order of all explainers is the same as with
    all judgements.
    """
    areas = {name: judgement_areas(rows["first"].to_numpy()) for name, rows in by_explainer.items()}
    images = {name: rows["image"].nunique() for name, rows in by_explainer.items()}
    whole = np.argsort([-of_explainer.mean() for of_explainer in areas.values()], kind="stable")
    rows = []
    for number in NUMBERS:
        sizes = {name: round(number * images[name]) for name in areas}
        if any(not 0 < sizes[name] < len(of_explainer) for name, of_explainer in areas.items()):
            continue
        drawn = np.stack([_draw(of_explainer, sizes[name], study.seed, name) for name, of_explainer in areas.items()])
        same = float((np.argsort(-drawn, axis=0, kind="stable") == whole[:, None]).all(axis=0).mean())
        for name, means in zip(areas, drawn, strict=True):
            low, high = np.percentile(means, [2.5, 97.5])
            rows.append((number, name, float(means.mean()), float(low), float(high), same))
    return rows


def _draw(areas: np.ndarray, size: int, seed: int, name: str) -> np.ndarray:
    """Draw `size` areas without replacement, `DRAWS` times, and return the mean of each draw, shape (DRAWS,)."""
    n = len(areas)
    seeds = (seed_of(seed, "fewer", name, size, draw) for draw in range(DRAWS))
    return np.array([areas[np.argsort(random_bits(draw_seed, n))[:size]].mean() for draw_seed in seeds])


def _of_people(answers: Judged, evidence: dict[str, float]) -> list[tuple]:
    """Return the rows of the table OF_PEOPLE. They describe each person's performance and signs of guessing."""
    rows = []
    for person, judgements in answers.judgements.groupby("person"):
        checks = answers.checks.get(person, [])
        seconds = float(judgements["seconds"].median())
        about = *_mean_exposure(judgements["first"]), sum(checks), len(checks), evidence.get(person)
        rows.append((person, *about, seconds))
    return rows


def _mean_exposure(firsts: pd.Series) -> tuple[float | None, int, int]:
    """Return (mean exposure at the correct answers, number of correct answers, number of all judgements)."""
    return finite_or_none(firsts.mean()), int(firsts.count()), len(firsts)


def export(
    study: Study, path: Path, *, people: bool = True, with_failed: bool = False, exclude: Sequence[str] = ()
) -> int:
    """Write the answers in finished judgements as CSV or Parquet, in the format that `analyse --what agreement` reads.

    Args:
        study: A peek-a-boom study.
        path: Output file.
        people: Whether to include pseudonyms. If False, people are numbered independently for each image and explainer,
            so that a person's answers about different images cannot be linked.
        with_failed: Whether to include the judgements of people who failed an attention check.
        exclude: People whose judgements are always excluded.

    Returns:
        The number of rows.

    Raises:
        UserError: The suffix is not supported, or a name in `exclude` is unknown.
    """
    without = dropped(judged(study).checks, study.people(), with_failed, {*exclude, *excluded(study)})
    exposures = len(study.configuration["exposures"])
    numbers: dict[tuple[str, str], int] = {}
    rows = []
    for (person, unit), steps in by_judgement(study.answers(last=False)).items():
        image, explainer = pair_of(unit)
        if explainer is None or person in without or not has_ended(steps, exposures):
            continue
        number = numbers[image, explainer] = numbers.get((image, explainer), 0) + 1
        name = person if people else str(number)
        rows += [
            (image, explainer, step.payload["exposure"], name, step.payload["right"], study.dataset) for step in steps
        ]
    if not people:
        rows.sort()
    return write_rows(path, (*COLUMNS, DATASET), rows)
