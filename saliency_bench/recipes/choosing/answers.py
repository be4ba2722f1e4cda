"""Derive conclusions from the races and the held-out images, as plain data for the messages and the page."""

from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

import numpy as np

from saliency_bench.bound_metric import as_metric
from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.intervals import Estimate, interval, paired_difference
from saliency_bench.recipes.choosing.questions import ChoiceQuestion
from saliency_bench.recipes.choosing.rounds import HOPE, Contest, RoundScores, ranking

METHOD, BASELINE, OPEN, NOTHING = "method", "baseline", "open", "nothing"


def answer_of(contest: Contest, baselines: frozenset[str], later: RoundScores | None) -> dict[str, Any]:
    """Return the result for a metric: the remaining candidates, the leader, and their scores on held-out images.

    Args:
        contest: The race between the candidates on this metric.
        baselines: Candidates that ignore the network.
        later: Scores of finalists and baselines on held-out images, or None.
    """
    assert contest.scores is not None
    race = contest.race
    left = ranking(contest, contest.scores)
    unbeaten = [name for name in left if name in baselines]
    if later is not None:
        on_later = {name: values for (name, metric), values in later.values.items() if metric == contest.metric}
        race.duel({name: on_later[name] for name in race.names if name in on_later}, later.codes, baselines)
    methods = [name for name in left if name not in baselines]
    unshown = {name: sorted(baseline for baseline in baselines if not race.beats(name, {baseline})) for name in methods}
    beat = [name for name in methods if not unshown[name]]
    outcome = _outcome(left, unbeaten, beat, baselines)
    apart = [*left[:1], *methods[:1]] if outcome == BASELINE else [*methods[:1], *unbeaten]
    apart = apart if outcome in (BASELINE, OPEN) else methods[:2]
    rivals = apart[1:]
    return {
        "metric": contest.metric,
        "higher_is_better": contest.scores.higher[contest.metric],
        "outcome": outcome,
        "left": left,
        "unbeaten_baselines": unbeaten,
        "beat_baselines": beat,
        "not_shown_to_beat": unshown,
        "apart": apart,
        "dropped": [asdict(dropped) for dropped in race.dropped.values()],
        "images": contest.images,
        "clusters": contest.clusters,
        "ended": contest.ended,
        "by_sign": race.by_sign,
        "images_needed": _needed(contest, rivals, 0.0),
        "images_at_least": _needed(contest, rivals, HOPE),
        "images_at_most": _needed(contest, rivals, -HOPE),
        "later": {} if later is None else _later(contest, left[0] if left else "", later),
    }


def question_answer(
    question: ChoiceQuestion, answers: Sequence[dict[str, Any]], others: Sequence[ChoiceQuestion]
) -> dict[str, Any]:
    """Combine the results for a question's metrics into an answer. The metrics are not averaged.

    A metric is decisive if at least one method beats every baseline on it. A method is recommended only if it beats
    every baseline on all decisive metrics.
    """
    methods = [answer for answer in answers if answer["outcome"] == METHOD]
    speaking = [answer for answer in answers if answer["outcome"] in (METHOD, OPEN)]
    unbeaten: list[str] = []
    if methods:
        unbeaten = [name for name in methods[0]["not_shown_to_beat"]
                    if all(name in answer["left"] for answer in speaking)]  # fmt: skip
    pool = [name for name in unbeaten if all(name in answer["beat_baselines"] for answer in methods)]
    return {
        "name": question.name,
        "about": question.about,
        "silent": "" if question.complement in {other.name for other in others} else question.silent,
        "metrics": [str(as_metric(metric)) for metric in question.metrics],
        "recommended": pool[0] if pool else None,
        "as_good": pool[1:],
        "not_shown": unbeaten[0] if unbeaten and not pool else None,
    }


def _outcome(left: Sequence[str], unbeaten: Sequence[str], beat: Sequence[str], baselines: frozenset[str]) -> str:
    """Return the outcome of a race: a method beats all baselines, a baseline is ahead, neither, or nobody is left.

    Args:
        left: Remaining candidates, best first.
        unbeaten: Remaining baselines.
        beat: Remaining methods that beat every baseline significantly, either in the race or in separate bets.
        baselines: Candidates that ignore the network.
    """
    if not left:
        return NOTHING
    if beat or not unbeaten:
        return METHOD
    return BASELINE if left[0] in baselines else OPEN


def _needed(contest: Contest, rivals: Sequence[str], errors: float) -> int | None:
    """Return the dataset size that would suffice to drop the rivals, or None if the race shows no trend.

    Args:
        contest: The race.
        rivals: Candidates that would have to be dropped.
        errors: Number of standard errors by which a true difference may exceed the observed difference.
    """
    needed = [contest.race.needed(name, errors) for name in rivals]
    known = [clusters for clusters in needed if clusters is not None]
    if not known or len(known) < len(needed):
        return None
    # The first clusters are not used for bets. The clusters used so far were not enough.
    without_bets = contest.clusters - min(contest.race.bets(name) for name in rivals)
    clusters = max(max(known) + without_bets, contest.clusters + 1)
    # Only half of the images are used for the decision, and some of them may not be explained.
    return ceil(2 * clusters * contest.limit / max(contest.clusters, 1))


def _later(contest: Contest, winner: str, later: RoundScores) -> dict[str, dict[str, Any]]:
    """Return {candidate: its mean score on held-out images, and the winner's lead over it on these images}."""
    metric = contest.metric
    sign = 1.0 if later.higher[metric] else -1.0
    results: dict[str, dict[str, Any]] = {}
    for name in sorted({name for name, scored in later.values if scored == metric}):
        values = later.values[name, metric]
        codes = later.codes
        finite = np.isfinite(values)
        if not finite.any():
            continue
        mean = interval(np.where(finite, sign * values, np.nan), codes, later.ranges[metric])
        results[name] = _numbers(mean)
        if name != winner and (winner, metric) in later.values:
            matched = Matched([later.values[winner, metric], values], codes, later.ranges[metric])
            ahead = paired_difference(matched, 0, 1)
            results[name]["winner_ahead"] = _numbers(ahead)
    return results


def _numbers(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as a dict in which unknown values are None."""
    value, low, high = estimate.known
    numbers = {"value": value, "low": low, "high": high, "n": estimate.n, "clusters": estimate.clusters}
    return numbers | {"rare": estimate.rare}
