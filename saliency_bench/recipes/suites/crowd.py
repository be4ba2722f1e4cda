"""Compute table numbers from people's answers: areas, accuracies at an exposure, and counts by difficulty.

These numbers are used for table 3 and figures 5, 6 and 7 of Lu et al. (2021). `--answers` lists files of answers from
one or more studies. Answers about images that a run does not contain are skipped. If a file names its dataset, its
answers are used only for runs on this dataset.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from saliency_bench.read.analysis.order_agreement import Answers, crowd_auc
from saliency_bench.read.finished_run import Run
from saliency_bench.read.statistics.exposures import SHOWN, judgement_areas, right_by
from saliency_bench.read.statistics.intervals import interval
from saliency_bench.recipes.suites.number import NoNumberError, Number
from saliency_bench.recipes.suites.suite_schema import Value
from saliency_bench.utils.seeds import random_bits, seed_of

DRAWS = 1000  # random subsets of the judgements for a value with `judgements`
ROUNDING = 1e-9


def crowd_number(answers: Sequence[Answers], run: Run, explainer: str, value: Value) -> Number:
    """Compute a value from people's answers about the images of a run.

    Args:
        answers: People's answers, one item per file.
        run: The run.
        explainer: Name that cells use for the explainer.
        value: Declaration of the value. If none of its fields `exposure`, `judgements` and `bin` is set, the result is
            the area under people's accuracy (saliency_crowd_auc).

    Raises:
        NoNumberError: There are no answers, or there are fewer judgements than `value.judgements` requires.
    """
    if value.count:
        return _count(answers, run, value)
    firsts: dict[str, list[float]] = {}
    for source in answers:
        for image_id, exposures in source.about(run).judgements.get(explainer, {}).items():
            if image_id in run.scores.position:
                firsts.setdefault(image_id, []).extend(exposures)
    if not firsts:
        raise NoNumberError("no answers from people about these images; pass files of answers with --answers")
    ids, seed = sorted(firsts), run.seed
    codes = run.scores.codes(ids)
    judgements = [np.array(firsts[image_id]) for image_id in ids]
    if value.judgements:
        drawn = _with_fewer(np.concatenate(judgements), float(value.judgements), len(ids), explainer, seed)
        if drawn is not None:
            ends = np.percentile(drawn, [2.5, 97.5])
            return Number(float(drawn.mean()), float(ends[0]), float(ends[1]), len(ids))
    if value.exposure:
        right = np.concatenate([right_by(of_image, [float(value.exposure)])[:, 0] for of_image in judgements])
        codes = np.repeat(codes, [len(of_image) for of_image in judgements])
        estimate = interval(right.astype(float), codes, (0.0, 1.0), seed)
    else:
        estimate = crowd_auc(judgements, codes, seed)
    return Number(*estimate.known, len(ids))


def _with_fewer(firsts: np.ndarray, each: float, images: int, explainer: str, seed: int) -> np.ndarray | None:
    """Return the areas for `DRAWS` random subsets with `each` judgements per image.

    Return None if these are all judgements.

    Raises:
        NoNumberError: There are fewer than `each` judgements per image.
    """
    areas, size = judgement_areas(firsts), round(each * images)
    if size > len(areas) or size == 0:
        raise NoNumberError(f"people have judged each image only {len(areas) / images:.3g} times, not {each:g} times")
    if size == len(areas):
        return None
    seeds = (seed_of(seed, "fewer", explainer, size, draw) for draw in range(DRAWS))
    return np.array([areas[np.argsort(random_bits(draw_seed, len(areas)))[:size]].mean() for draw_seed in seeds])


def _count(answers: Sequence[Answers], run: Run, value: Value) -> Number:
    """Count the images or people whose mean exposure at the first correct answer is in the interval (low, high]."""
    low, high = map(float, value.bin.split())
    means = [np.nanmean(firsts) for firsts in _grouped(answers, run, value.count) if not np.isnan(firsts).all()]
    if not means:
        raise NoNumberError("no answers from people about these images; pass files of answers with --answers")
    inside = sum(low + ROUNDING < mean <= high + ROUNDING for mean in means)
    return Number(float(inside), n=len(means))


def _grouped(answers: Sequence[Answers], run: Run, by: str) -> Iterator[np.ndarray]:
    """For each image or each person, yield the exposures of the first correct answers (NaN if there is none)."""
    groups: dict[tuple[int, str], list[float]] = {}
    for number, source in enumerate(answers):
        for person, of_person in source.about(run).of_people.items():
            for image_id, exposures in of_person.items():
                if image_id in run.scores.position:  # studies can share images, but not people
                    key = (0, image_id) if by == "image" else (number, person)
                    groups.setdefault(key, []).extend(exposures)
    yield from map(np.array, groups.values())


def drawn_answers(run: Run, explainers: Sequence[str], people: int = 10) -> Answers:
    """Simulate answers for the tables of a smoke test. Each person judges each image with each explainer."""
    judgements: dict[str, dict[str, list[float]]] = {}
    of_people: dict[str, dict[str, list[float]]] = {}
    for explainer in explainers:
        for image_id in run.scores.ids:
            draws = random_bits(seed_of(0, "smoke answers", explainer, image_id), people) % (len(SHOWN) + 1)
            firsts = [*SHOWN, np.nan]
            judgements.setdefault(explainer, {})[image_id] = [firsts[draw] for draw in draws]
            for person, draw in enumerate(draws):
                of_people.setdefault(f"person {person}", {}).setdefault(image_id, []).append(firsts[draw])
    return Answers(judgements, "", of_people)
