"""The rounds of `choose`: score all candidates on a few images, then score the unbeaten ones on more and more images.

Every metric has a separate race (`read/analysis/sequential.py`). Each round requests the scores for all images so far,
and a run computes the missing scores. The rounds depend only on scores, verdicts and costs. If `choose` is called
again, for example with more time or images, it therefore repeats the same rounds and loads their scores from the run's
folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from saliency_bench.read.analysis.sequential import ALIKE, NO_IMAGES, NO_TIME, ONE_LEFT, Dropped, Race
from saliency_bench.read.cell import BEST_FROM, FEW
from saliency_bench.read.statistics.clusters import Matched, cluster_codes
from saliency_bench.read.statistics.intervals import Estimate, difference

FIRST, GROWTH = 8, 1.5  # number of images in the first round, and growth factor per round
CHECKED = 16  # number of images on which maps are compared with maps of random weights
RESERVED = 2  # number of candidates per metric for which time is reserved until there is a leader
FINALISTS = 3  # number of methods per metric that are scored on held-out images
HOPELESS = "there are too few images to separate the remaining candidates"
HOPE = 2.0  # assumed limit, in standard errors, by which a true difference may exceed the observed difference
NO_SCORES = "no candidate has scores"


@dataclass(frozen=True)
class RoundScores:
    """Scores of the first images of a run.

    Attributes:
        values: {(candidate, metric): (n,) scores, oriented so that higher is better; NaN if missing}.
        ids: Ids of the images in the order of the run.
        groups: Cluster of each image, None for an image without a cluster.
        ranges: {metric: (lowest, highest) possible score before orientation}.
        higher: {metric: whether higher scores are better before orientation}.
    """

    values: Mapping[tuple[str, str], np.ndarray]
    ids: Sequence[str]
    groups: Sequence[str | None]
    ranges: Mapping[str, tuple[float, float]]
    higher: Mapping[str, bool]

    def since(self, start: int) -> "RoundScores":
        """Return the scores for the images from index `start` onwards."""
        values = {key: scores[start:] for key, scores in self.values.items()}
        return RoundScores(values, self.ids[start:], self.groups[start:], self.ranges, self.higher)

    def span(self, metric: str) -> float:
        """Return the largest possible difference between two scores on a metric."""
        low, high = self.ranges[metric]
        return high - low

    @property
    def codes(self) -> np.ndarray:
        """Return the cluster number of each image."""
        return cluster_codes(self.ids, self.groups)

    @property
    def clusters(self) -> int:
        """Return the number of clusters."""
        return int(self.codes.max(initial=-1)) + 1


class Laboratory(Protocol):
    """Interface through which the rounds request scores."""

    def scores(self, lineup: Mapping[str, Sequence[str]], images: int) -> RoundScores:
        """Return the scores on the first images of the run, for the candidates in {metric: candidates}."""
        ...

    def survivors(self, names: Sequence[str], images: int) -> set[str]:
        """Return the candidates whose maps for the first images do not depend on the network's weights."""
        ...

    def twins(self, names: Sequence[str]) -> dict[str, str]:
        """Return {candidate: an earlier candidate with the same maps}."""
        ...


@dataclass
class Budget:
    """Time budget for the rounds, based on the estimated costs.

    Attributes:
        limit: Limit in seconds.
        maps: {candidate: seconds per map}.
        metrics: {(candidate, metric): seconds per score}.
        spent: Seconds used so far.
    """

    limit: float
    maps: Mapping[str, float]
    metrics: Mapping[tuple[str, str], float]
    spent: float = 0.0

    def per_image(self, lineup: Mapping[str, Sequence[str]]) -> float:
        """Return the seconds needed per image for {metric: candidates}. Each candidate's map is computed only once."""
        names = {name for names in lineup.values() for name in names}
        scoring = sum(self.metrics.get((name, metric), 0.0) for metric, names in lineup.items() for name in names)
        return scoring + sum(self.maps.get(name, 0.0) for name in sorted(names))

    def spend(self, lineup: Mapping[str, Sequence[str]], images: int) -> None:
        """Add the cost of scoring these images to the time used."""
        self.spent += self.per_image(lineup) * images


@dataclass
class Contest:
    """The race between the candidates on a metric.

    Attributes:
        metric: Metric of the race.
        race: Race of the candidates.
        leader: Best candidate so far.
        second: Second-best candidate.
        ended: Reason why the race has ended, or "" while the race continues.
        images: Number of images used for the decision.
        limit: Number of images that were read, including those that are not explained.
        clusters: Number of clusters of the images used.
        scores: Scores of the images used, for the remaining candidates.
    """

    metric: str
    race: Race
    leader: str = ""
    second: str = ""
    ended: str = ""
    images: int = 0
    limit: int = 0
    clusters: int = 0
    scores: RoundScores | None = None


@dataclass(frozen=True)
class Round:
    """Record of a round.

    Attributes:
        limit: Value of the run's `limit` setting.
        images: Number of explained images.
        clusters: Number of clusters of these images.
        lineup: {metric: candidates}.
        dropped: {metric: candidates dropped in this round}.
    """

    limit: int
    images: int
    clusters: int
    lineup: dict[str, list[str]]
    dropped: dict[str, list[Dropped]]


@dataclass
class Narrowing:
    """Narrows down the candidates in rounds, for all metrics.

    Attributes:
        laboratory: Object that provides the scores.
        names: {metric: candidates}.
        baselines: Candidates that ignore the network.
        images: Maximum number of images that may be used for the decision.
        budget: Time budget.
        margin: Candidates within this margin of the best count as equally good.
        largest: Number of images in the largest cluster.
        first: Number of images in the first round.
        excluded: Candidates whose maps do not change when the weights are randomised.
        checked: Candidates whose maps were checked with randomised weights.
        twins: {dropped candidate: the earlier candidate with the same maps}.
    """

    laboratory: Laboratory
    names: dict[str, list[str]]
    baselines: frozenset[str]
    images: int
    budget: Budget
    margin: float
    largest: int = 1
    first: int = FIRST
    contests: dict[str, Contest] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)
    checked: set[str] = field(default_factory=set)
    twins: dict[str, str] = field(default_factory=dict)

    def narrow(self) -> None:
        """Run the rounds until every metric's race has ended."""
        seen, limit = 0, 0
        while lineup := self._lineup():
            following = self._next(limit, lineup)
            if following is None:
                break
            limit = following
            scores = self.laboratory.scores(lineup, limit)
            self.budget.spend(lineup, len(scores.ids) - seen)
            if not self.rounds:
                self._leave_out_twins(scores)
            dropped = {metric: self._look(metric, scores, seen) for metric in lineup}
            for metric in lineup:
                self.contests[metric].limit = limit
            self.rounds.append(Round(limit, len(scores.ids), scores.clusters, lineup, dropped))
            seen = len(scores.ids)

    def _leave_out_twins(self, scores: RoundScores) -> None:
        """If several candidates have the same maps, keep only the first of them.

        The candidates are compared in the first round, whose images are not used for bets.
        """
        by_scores: dict[tuple[tuple[str, bytes], ...], list[str]] = {}
        for name in dict.fromkeys(name for names in self.names.values() for name in names):
            columns = ((metric, scores.values[name, metric].tobytes()) for metric in self.names
                       if name in self.names[metric])  # fmt: skip
            by_scores.setdefault(tuple(columns), []).append(name)
        for names in by_scores.values():
            if len(names) > 1:
                self.twins |= self.laboratory.twins(names)
        self.names = {metric: [name for name in names if name not in self.twins]
                      for metric, names in self.names.items()}  # fmt: skip

    def _lineup(self) -> dict[str, list[str]]:
        """Return {metric: remaining candidates} for the races that have not ended."""
        if not self.contests:
            return dict(self.names)
        return {metric: contest.race.left for metric, contest in self.contests.items() if not contest.ended}

    def _next(self, limit: int, lineup: Mapping[str, Sequence[str]]) -> int | None:
        """Return the number of images in the next round, or None if there are no images or no time left."""
        reason = NO_IMAGES if limit >= self.images else ""
        following = min(self.images, limit + self.first * max(1, round((GROWTH - 1) * limit / self.first)))
        # For every image used for the decision, reserve time for a held-out image.
        reserve = self.budget.per_image(self._reserved(lineup))
        time = self.budget.limit - self.budget.spent - reserve * limit
        per_image = self.budget.per_image(lineup) + reserve
        if not reason and per_image * (following - limit) > time:
            following = limit + max(0, int(time / per_image)) // self.first * self.first
            reason = NO_TIME if following <= limit else ""
        if not reason:
            return following
        for contest in self.contests.values():
            contest.ended = contest.ended or reason
        return None

    def _reserved(self, lineup: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return {metric: candidates to score on held-out images}.

        The best candidates of each race and the baselines are scored.
        """
        best = [name for contest in self.contests.values() for name in (contest.leader, contest.second) if name]
        first = [name for names in lineup.values() for name in list(names)[:RESERVED]]
        names = list(dict.fromkeys([*(best or first), *sorted(self.baselines)]))
        return dict.fromkeys(self.names, names)

    def _look(self, metric: str, scores: RoundScores, seen: int) -> list[Dropped]:
        """Bet on the new images of a round, and determine the leaders for the next round."""
        names = self.names[metric]
        if metric not in self.contests:
            race = Race(names, scores.span(metric), self.margin, largest=self.largest)
            self.contests[metric] = Contest(metric, race)
            for name in self.excluded & set(names):
                race.exclude(name)
        contest, dropped = self.contests[metric], []
        of_metric = {name: scores.values[name, metric] for name in contest.race.left}
        fresh = {name: values[seen:] for name, values in of_metric.items()}
        codes = scores.since(seen).codes
        contest.race.duel(fresh, codes, self.baselines)
        if contest.leader and len(of_metric) > 1:
            dropped = contest.race.look(fresh, codes, contest.leader, contest.second, scores.clusters)
        contest.images, contest.clusters, contest.scores = len(scores.ids), scores.clusters, scores
        self._lead(contest, scores)
        contest.ended = self._end(contest, scores)
        return dropped

    def _lead(self, contest: Contest, scores: RoundScores) -> None:
        """Set the two best candidates of a race.

        Candidates whose maps ignore the network's weights are excluded first.
        """
        while True:
            ranked = ranking(contest, scores)
            unchecked = [name for name in ranked[:2] if name not in self.baselines | self.checked]
            if not unchecked:
                break
            self.check(unchecked)
        contest.leader = ranked[0] if ranked else ""
        contest.second = ranked[1] if len(ranked) > 1 else contest.leader

    def check(self, names: Sequence[str]) -> None:
        """Exclude the candidates whose maps do not change when the weights are randomised."""
        self.checked |= set(names)
        self.excluded |= self.laboratory.survivors(names, max(self.first, CHECKED))
        for contest in self.contests.values():
            for name in self.excluded & set(contest.race.names):
                contest.race.exclude(name)

    def _end(self, contest: Contest, scores: RoundScores) -> str:
        """Return the reason why a race needs no more images, or ""."""
        if not contest.leader:
            return NO_SCORES
        others = [name for name in contest.race.left if name != contest.leader]
        if not set(others) - self.baselines and (not others or contest.leader in self.baselines):
            return ONE_LEFT
        if contest.clusters < FEW:
            return ""
        if not set(others) & self.baselines:
            ahead = [lead_over(contest, other, scores).high for other in others]
            if all(high <= self.margin for high in ahead):
                return ALIKE
        return HOPELESS if self._hopeless(contest) else ""

    def _hopeless(self, contest: Contest) -> bool:
        """Return whether no candidate could be dropped even with all images and with favourable differences."""
        whole = contest.clusters * self.images / max(contest.images, 1)
        needed = [contest.race.needed(name, HOPE) for name in contest.race.left]
        return all(clusters is None or clusters > whole for clusters in needed)


def ranking(contest: Contest, scores: RoundScores) -> list[str]:
    """Return the remaining candidates in a race that have scores for nearly all images, from best to worst."""
    values = {name: scores.values[name, contest.metric] for name in contest.race.left}
    average = np.nanmedian if contest.race.by_sign else np.nanmean
    scored = {name: int(np.isfinite(numbers).sum()) for name, numbers in values.items()}
    enough = BEST_FROM * max(scored.values(), default=0)
    means = {name: float(average(values[name])) for name in values if scored[name] and scored[name] >= enough}
    return sorted(means, key=lambda name: (-means[name], contest.race.names.index(name)))


def lead_over(contest: Contest, other: str, scores: RoundScores) -> Estimate:
    """Return the lead of a race's leader over a different candidate, with a 95 % interval."""
    differences = contest.race.differences(
        scores.values[contest.leader, contest.metric], scores.values[other, contest.metric]
    )
    return difference(Matched([differences, np.where(np.isfinite(differences), 0.0, np.nan)], scores.codes), 0, 1)
