"""The rounds of `choose`: all candidates on a few images, then the unbeaten ones on more and more images.

Every metric has a race of its own (`read/analysis/sequential.py`). A round asks for the scores of all images so far, of
which a run computes the new ones. What the rounds do is a function of scores, verdicts and costs, so that a start that
was killed, or that asks for more, goes through the same rounds again and finds their scores in the run's folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from saliency_bench.read.analysis.sequential import Dropped, Race
from saliency_bench.read.cell import BEST_FROM, FEW
from saliency_bench.read.statistics.clusters import Matched, cluster_codes
from saliency_bench.read.statistics.intervals import Estimate, difference

FIRST, GROWTH = 8, 1.5  # images of the first round; how much more each round has
CHECKED = 16  # images on which maps are compared with those under random weights
RESERVED = 2  # candidates per metric that time is kept for before there is a leader
FINALISTS = 3  # methods per metric that are scored on further images
ONE_LEFT, ALIKE = "one is left", "those left are alike"
NO_IMAGES, NO_TIME = "no more images may decide", "the time was up"
HOPELESS = "the images are too few to tell those left apart"
HOPE = 2.0  # standard errors by which a difference may be greater than it looks, before more images are no use
NO_SCORES = "no candidate has scores"


@dataclass(frozen=True)
class RoundScores:
    """Scores of the first images of a run.

    Attributes:
        values: {(candidate, metric): (n,) oriented so that higher is better; NaN: none}.
        ids: ids of the images, in the run's order.
        groups: their clusters; None: its own.
        ranges: {metric: (lowest, highest) score, as the metric gives them}.
        higher: {metric: whether higher scores are better, as the metric gives them}.
    """

    values: Mapping[tuple[str, str], np.ndarray]
    ids: Sequence[str]
    groups: Sequence[str | None]
    ranges: Mapping[str, tuple[float, float]]
    higher: Mapping[str, bool]

    def since(self, start: int) -> "RoundScores":
        """Return the scores of the images from `start` on."""
        values = {key: scores[start:] for key, scores in self.values.items()}
        return RoundScores(values, self.ids[start:], self.groups[start:], self.ranges, self.higher)

    def span(self, metric: str) -> float:
        """Return the greatest difference of two scores."""
        low, high = self.ranges[metric]
        return high - low

    @property
    def codes(self) -> np.ndarray:
        """Return the number of each image's cluster."""
        return cluster_codes(self.ids, self.groups)

    @property
    def clusters(self) -> int:
        """Return how many clusters there are."""
        return int(self.codes.max(initial=-1)) + 1


class Laboratory(Protocol):
    """Interface of the rounds to what computes scores."""

    def scores(self, lineup: Mapping[str, Sequence[str]], images: int) -> RoundScores:
        """Return the scores of {metric: candidates} on the first images."""
        ...

    def survivors(self, names: Sequence[str], images: int) -> set[str]:
        """Return the candidates whose maps do not depend on the network's weights, as the first images show."""
        ...

    def twins(self, names: Sequence[str]) -> dict[str, str]:
        """Return {candidate: an earlier one with the same maps}."""
        ...


@dataclass
class Budget:
    """Seconds that may be spent, by the costs of the plan.

    Attributes:
        limit: limit in seconds.
        maps: {candidate: seconds of a map}.
        metrics: {(candidate, metric): seconds of scoring a map}.
        spent: so far, in seconds.
    """

    limit: float
    maps: Mapping[str, float]
    metrics: Mapping[tuple[str, str], float]
    spent: float = 0.0

    def per_image(self, lineup: Mapping[str, Sequence[str]]) -> float:
        """Return the seconds that {metric: candidates} take for an image; a candidate makes its map once."""
        names = {name for names in lineup.values() for name in names}
        scoring = sum(self.metrics.get((name, metric), 0.0) for metric, names in lineup.items() for name in names)
        return scoring + sum(self.maps.get(name, 0.0) for name in sorted(names))

    def spend(self, lineup: Mapping[str, Sequence[str]], images: int) -> None:
        """Count what these images take."""
        self.spent += self.per_image(lineup) * images


@dataclass
class Contest:
    """A metric's race.

    Attributes:
        metric: metric of the race.
        race: race of the candidates.
        leader: the best so far.
        second: the next.
        ended: why no more images are asked for; "" while they are.
        images: images that decided.
        limit: images of the dataset that were gone through for these; more where not all are explained.
        clusters: clusters of these images.
        scores: scores of these, of the candidates that were left.
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
        limit: limit of the run.
        images: images that are explained.
        clusters: clusters of these images.
        lineup: {metric: its candidates}.
        dropped: {metric: those that were beaten}.
    """

    limit: int
    images: int
    clusters: int
    lineup: dict[str, list[str]]
    dropped: dict[str, list[Dropped]]


@dataclass
class Narrowing:
    """The rounds of all metrics.

    Attributes:
        laboratory: gives scores.
        names: {metric: its candidates}.
        baselines: candidates that ignore the network.
        images: images that may decide, at most.
        budget: budget of time.
        margin: candidates within it of the best are as good as the best.
        largest: most images of a cluster.
        first: images of the first round.
        excluded: candidates whose maps survive random weights.
        checked: candidates for which this was looked at.
        twins: {candidate: an earlier one whose maps are the same, which alone takes part}.
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
        """Go through the rounds until every metric's race has ended."""
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
        """Leave out all but one of the candidates with the same maps; nothing was bet on the first round's images."""
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
        """Return {metric: candidates left} of the races that go on."""
        if not self.contests:
            return dict(self.names)
        return {metric: contest.race.left for metric, contest in self.contests.items() if not contest.ended}

    def _next(self, limit: int, lineup: Mapping[str, Sequence[str]]) -> int | None:
        """Return how many images the next round has; None where no more images or time are left."""
        reason = NO_IMAGES if limit >= self.images else ""
        following = min(self.images, limit + self.first * max(1, round((GROWTH - 1) * limit / self.first)))
        # An image that decides is followed by another one that shows how good the best are.
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
        """Return {metric: candidates} that are scored in the end at least: the best of each race, and the baselines."""
        best = [name for contest in self.contests.values() for name in (contest.leader, contest.second) if name]
        first = [name for names in lineup.values() for name in list(names)[:RESERVED]]
        names = list(dict.fromkeys([*(best or first), *sorted(self.baselines)]))
        return dict.fromkeys(self.names, names)

    def _look(self, metric: str, scores: RoundScores, seen: int) -> list[Dropped]:
        """Bet on the images of a round that are new, and name the leaders of the next."""
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
        """Name the two best of a race, once it is known that their maps depend on the network's weights."""
        while True:
            ranked = ranking(contest, scores)
            unchecked = [name for name in ranked[:2] if name not in self.baselines | self.checked]
            if not unchecked:
                break
            self.check(unchecked)
        contest.leader = ranked[0] if ranked else ""
        contest.second = ranked[1] if len(ranked) > 1 else contest.leader

    def check(self, names: Sequence[str]) -> None:
        """Exclude the candidates whose maps survive random weights."""
        self.checked |= set(names)
        self.excluded |= self.laboratory.survivors(names, max(self.first, CHECKED))
        for contest in self.contests.values():
            for name in self.excluded & set(contest.race.names):
                contest.race.exclude(name)

    def _end(self, contest: Contest, scores: RoundScores) -> str:
        """Return why a race needs no more images, "" if it does."""
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
        """Return whether no candidate would be dropped on all images that may decide, even if luck was against it."""
        whole = contest.clusters * self.images / max(contest.images, 1)
        needed = [contest.race.needed(name, HOPE) for name in contest.race.left]
        return all(clusters is None or clusters > whole for clusters in needed)


def ranking(contest: Contest, scores: RoundScores) -> list[str]:
    """Return the candidates of a race that are left and have nearly all scores, the best first."""
    values = {name: scores.values[name, contest.metric] for name in contest.race.left}
    average = np.nanmedian if contest.race.by_sign else np.nanmean
    scored = {name: int(np.isfinite(numbers).sum()) for name, numbers in values.items()}
    enough = BEST_FROM * max(scored.values(), default=0)
    means = {name: float(average(values[name])) for name in values if scored[name] and scored[name] >= enough}
    return sorted(means, key=lambda name: (-means[name], contest.race.names.index(name)))


def lead_over(contest: Contest, other: str, scores: RoundScores) -> Estimate:
    """Return how far the leader of a race is ahead of another candidate, with a 95 % interval."""
    differences = contest.race.differences(
        scores.values[contest.leader, contest.metric], scores.values[other, contest.metric]
    )
    return difference(Matched([differences, np.where(np.isfinite(differences), 0.0, np.nan)], scores.codes), 0, 1)
