"""Results of peek-a-boom: accuracy curves, areas under them, the number of judgements needed, people.

Tables 2 and 3 (the rows of the crowd) and figures 5 and 6 of Lu et al., 2021. Only judgements that have ended count: by
a right answer, or without one at the whole image (*never right*, which counts as wrong at every exposure).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.analysis.agreement import COLUMNS, crowd_auc
from saliency_bench.analysis.tables import Findings, Table, dicts, finite_or_none
from saliency_bench.errors import UserError
from saliency_bench.results.cell import rank_text
from saliency_bench.results.clusters import Matched
from saliency_bench.results.intervals import difference, interval
from saliency_bench.results.paired_test import adjusted_p
from saliency_bench.results.ranking import RANKED_FROM, TOO_FEW, rank_sets, sign_of
from saliency_bench.scoring.exposures import judgement_areas, right_by
from saliency_bench.studies.attention_checks import failed, note
from saliency_bench.studies.peekaboom.protocol import by_judgement, has_ended
from saliency_bench.studies.result_rows import codes_of, numbered, write_rows
from saliency_bench.studies.run_images import pair_of
from saliency_bench.studies.study import Study
from saliency_bench.utils.seeds import random_bits, seed_of

NUMBERS = (0.3, 0.5, 1.0, 3.0, 5.0, 7.0, 10.0)  # of judgements per image and explainer, of table 3
DRAWS = 1000
CROWD = ("explainer", "saliency_crowd_auc", "low", "high", "rank", "images", "judgements", "never right")
CURVES = ("explainer", "exposure", "accuracy", "low", "high", "judgements")
FEWER = ("judgements per pair", "explainer", "saliency_crowd_auc", "2.5 %", "97.5 %", "same order")
OF_IMAGES = ("image_id", "mean exposure", "right", "judgements")
OF_PEOPLE = ("person", "mean exposure", "right", "judgements", "checks right", "checks", "median seconds")


@dataclass(frozen=True)
class Judgement:
    """One person on one image by one explainer.

    Attributes:
        person: the pseudonym.
        image: its id.
        explainer: its name.
        first: the exposure of the right answer; NaN without.
        seconds: of all answers.
    """

    person: str
    image: str
    explainer: str
    first: float
    seconds: float


@dataclass(frozen=True)
class Judged:
    """The stored judgements.

    Attributes:
        judgements: those that have ended.
        checks: {person: whether each attention check was right}.
        unfinished: number of those that are left out.
    """

    judgements: list[Judgement]
    checks: dict[str, list[bool]]
    unfinished: int


def judged(study: Study) -> Judged:
    """Return the stored judgements of a study."""
    exposures, unfinished = len(study.configuration["exposures"]), 0
    judgements: list[Judgement] = []
    checks: dict[str, list[bool]] = {}
    for (person, unit), steps in by_judgement(study.answers(last=False)).items():
        image, explainer = pair_of(unit)
        last = steps[-1].payload
        if explainer is None:
            checks.setdefault(person, []).append(last["right"])
        elif not has_ended(steps, exposures):
            unfinished += 1
        else:
            first = last["exposure"] if last["right"] else np.nan
            judgements.append(Judgement(person, image, explainer, first, sum(step.seconds for step in steps)))
    return Judged(judgements, checks, unfinished)


def results(study: Study, *, people: bool = True, without_failed: bool = False) -> Findings:
    """Return tables of the judgements that have ended.

    Args:
        study: of peek-a-boom.
        people: False gives numbers instead of pseudonyms.
        without_failed: leave out the judgements of people who failed an attention check.

    Raises:
        UserError: No judgement has ended.
    """
    answers = judged(study)
    dropped = set(failed(answers.checks)) if without_failed else set()
    kept = [judgement for judgement in answers.judgements if judgement.person not in dropped]
    if not kept:
        raise UserError(f"study {study.name} has no judgement yet that has ended")
    explainers = [
        name for name in study.configuration["explainers"] if any(judgement.explainer == name for judgement in kept)
    ]
    by_explainer = {name: [judgement for judgement in kept if judgement.explainer == name] for name in explainers}
    crowd, order = _crowd(study, by_explainer)
    tables = {
        "": (CROWD, crowd),
        "accuracies": (CURVES, _curves(study, by_explainer)),
        "judgements": (FEWER, _with_fewer(study, by_explainer)),
        "images": (OF_IMAGES, _of_images(kept)),
        "people": (OF_PEOPLE, _of_people(kept, answers.checks)),
    }
    if not people:
        tables["people"] = OF_PEOPLE, numbered(tables["people"][1])
    data: dict[str, Any] = {name or "crowd": dicts(header, rows) for name, (header, rows) in tables.items()}
    notes = _notes(answers, order, without_failed)
    return Findings("peekaboom", [Table(header, rows, name) for name, (header, rows) in tables.items()], data, notes)


def _notes(answers: Judged, order: str, without_failed: bool) -> list[str]:
    """Return what must be known to read the tables."""
    notes = [order] if order else []
    if answers.unfinished:
        notes.append(f"Judgements that have not ended, and are left out: {answers.unfinished}.")
    return notes + note(answers.checks, "judgements", without_failed)


def _crowd(study: Study, by_explainer: dict[str, list[Judgement]]) -> tuple[list[tuple], str]:
    """Return (rows of CROWD, why there are no ranks)."""
    images = sorted({judgement.image for of_explainer in by_explainer.values() for judgement in of_explainer})
    codes = codes_of(study, images)
    rows, means = [], []
    for name, of_explainer in by_explainer.items():
        firsts: dict[str, list[float]] = {image: [] for image in images}
        for judgement in of_explainer:
            firsts[judgement.image].append(judgement.first)
        arrays = [np.array(area) for area in firsts.values()]
        area = crowd_auc(arrays, codes, study.seed)
        means.append(
            np.array([judgement_areas(judgement).mean() if len(judgement) else np.nan for judgement in arrays])
        )
        never = sum(bool(np.isnan(judgement.first)) for judgement in of_explainer)
        rows.append(
            (
                name,
                *map(finite_or_none, area[:3]),
                sum(len(judgement) > 0 for judgement in arrays),
                len(of_explainer),
                never,
            )
        )
    ranks = _ranks(list(by_explainer), means, codes, study.seed)
    whole = [(*row[:4], ranks.get(name, TOO_FEW), *row[4:]) for name, row in zip(by_explainer, rows, strict=True)]
    order = "" if ranks else f"Ranks need {RANKED_FROM} images that both explainers of a pair were judged on."
    return sorted(whole, key=lambda row: -row[1]), order


def _ranks(names: list[str], means: list[np.ndarray], codes: np.ndarray, seed: int) -> dict[str, str]:
    """Return {explainer: its rank set as text}, by the paired test over clusters of images; {} of too few."""
    matched = Matched(means, codes)
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


def _curves(study: Study, by_explainer: dict[str, list[Judgement]]) -> list[tuple]:
    """Return rows of CURVES; the unit of an interval is the cluster of images."""
    exposures = study.configuration["exposures"]
    rows = []
    for name, of_explainer in by_explainer.items():
        right = right_by(np.array([judgement.first for judgement in of_explainer]), exposures).astype(float)
        codes = codes_of(study, [judgement.image for judgement in of_explainer])
        for exposure, column in zip(exposures, right.T, strict=True):
            estimate = interval(column, codes, (0.0, 1.0), study.seed)
            rows.append((name, exposure, *map(finite_or_none, estimate[:3]), len(of_explainer)))
    return rows


def _with_fewer(study: Study, by_explainer: dict[str, list[Judgement]]) -> list[tuple]:
    """Return rows of FEWER: `DRAWS` times, so many judgements per pair are drawn from those of each explainer.

    "same order": the share of draws that put all explainers in the order of all judgements.
    """
    areas = {
        name: judgement_areas(np.array([judgement.first for judgement in of_explainer]))
        for name, of_explainer in by_explainer.items()
    }
    images = {name: len({judgement.image for judgement in of_explainer}) for name, of_explainer in by_explainer.items()}
    whole = np.argsort([-of_explainer.mean() for of_explainer in areas.values()], kind="stable")
    rows = []
    for number in NUMBERS:
        sizes = {name: round(number * images[name]) for name in areas}
        if any(not 0 < sizes[name] < len(of_explainer) for name, of_explainer in areas.items()):
            continue
        drawn = np.stack([_drawn(of_explainer, sizes[name], study.seed, name) for name, of_explainer in areas.items()])
        same = float((np.argsort(-drawn, axis=0, kind="stable") == whole[:, None]).all(axis=0).mean())
        for name, means in zip(areas, drawn, strict=True):
            low, high = np.percentile(means, [2.5, 97.5])
            rows.append((number, name, float(means.mean()), float(low), float(high), same))
    return rows


def _drawn(areas: np.ndarray, size: int, seed: int, name: str) -> np.ndarray:
    """Return (DRAWS,) the mean of so many of these areas, drawn without replacement."""
    n = len(areas)
    seeds = (seed_of(seed, "fewer", name, size, draw) for draw in range(DRAWS))
    return np.array([areas[np.argsort(random_bits(draw_seed, n))[:size]].mean() for draw_seed in seeds])


def _of_images(kept: Sequence[Judgement]) -> list[tuple]:
    """Return rows of OF_IMAGES, by image: how hard they are."""
    firsts: dict[str, list[float]] = {}
    for judgement in kept:
        firsts.setdefault(judgement.image, []).append(judgement.first)
    return [(image, *_mean_exposure(of_image)) for image, of_image in sorted(firsts.items())]


def _of_people(kept: Sequence[Judgement], checks: dict[str, list[bool]]) -> list[tuple]:
    """Return rows of OF_PEOPLE: how able they are."""
    by_person: dict[str, list[Judgement]] = {}
    for judgement in kept:
        by_person.setdefault(judgement.person, []).append(judgement)
    rows = []
    for person, of_person in sorted(by_person.items()):
        right = checks.get(person, [])
        seconds = float(np.median([judgement.seconds for judgement in of_person]))
        rows.append(
            (person, *_mean_exposure([judgement.first for judgement in of_person]), sum(right), len(right), seconds)
        )
    return rows


def _mean_exposure(firsts: Sequence[float]) -> tuple[float | None, int, int]:
    """Return (mean exposure of the right answers, their number, that of all judgements)."""
    right = [first for first in firsts if not np.isnan(first)]
    return (float(np.mean(right)) if right else None), len(right), len(firsts)


def export(study: Study, path: Path, *, people: bool = True, without_failed: bool = False) -> int:
    """Write the answers of judgements that have ended as CSV or Parquet, as `analyse --what agreement` reads them.

    Args:
        study: of peek-a-boom.
        path: the file.
        people: False numbers the people of each image and explainer anew, so that nobody's answers can be put together.
        without_failed: leave out the judgements of people who failed an attention check.

    Returns:
        The number of rows.

    Raises:
        UserError: The suffix is another one.
    """
    dropped = set(failed(judged(study).checks)) if without_failed else set()
    exposures = len(study.configuration["exposures"])
    numbers: dict[tuple[str, str], int] = {}
    rows = []
    for (person, unit), steps in by_judgement(study.answers(last=False)).items():
        image, explainer = pair_of(unit)
        if explainer is None or person in dropped or not has_ended(steps, exposures):
            continue
        number = numbers[image, explainer] = numbers.get((image, explainer), 0) + 1
        name = person if people else str(number)
        rows += [(image, explainer, step.payload["exposure"], name, step.payload["right"]) for step in steps]
    if not people:
        rows.sort()
    return write_rows(path, COLUMNS, rows)
