r"""Sequential test that drops candidates by bets against the leader and stays valid after any number of looks.

Candidates i = 1..K have oriented scores X_i (higher is better). Two scores of one sample differ by at most `span`.
Clusters of samples are drawn independently. Before each look, one opponent j is chosen: the leader on all data so far.
For each cluster c of the look, candidate i gets a number between -1 and 1,

    Y_c = sum over samples s of c (X_j(s) - X_i(s) - margin) / (largest cluster * (span + margin))

and the wealth is W_i = sum over bets b of w(b) * product over clusters (1 + b * Y_c), with b = 0.95, 1/2, 1/4, ...,
1/128. The weights w(b) are proportional to 1, 1/2, 1/4, ..., 1/128 and sum to 1, so that candidates far behind are
dropped early.

**Theorem.** Let T be the candidates whose expected score is within `margin` of the expected score of every opponent.
For i in T, the expectation of Y_c given the past is at most 0, no matter which opponent was chosen. W_i is therefore a
non-negative supermartingale that starts at 1, and by Ville's inequality (1939) P(W_i ever reaches 1 / a) <= a. Drop i
when W_i reaches A / level, where A is K minus the number of candidates dropped so far. When the first member of T is
dropped, no other member has been dropped, so A >= |T|. By the union bound, the probability that *any* candidate of T is
*ever* dropped is at most `level`, over all looks, for every stopping rule, and even with ties. No assumption is made
about the distribution of the scores.

The bets are those of Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86
(2024), section 5 and appendix (diversified Kelly bets: a mixture of constant bets). The step down from K is Holm's
method (1979) for e-values. Betting against one leader instead of all K - 1 opponents is a predictable mixture of the
bets against each opponent.

The distance of a candidate behind the best is tested for all margins m at once: `behind` is the largest m for which
the wealth with margin m reaches K / level. All of these bounds are correct together with probability 1 - level.

The race alone does not show that the winner beats the baselines, which are maps that ignore the network, because a
baseline may have been dropped while a different candidate was the leader. Each method j therefore also bets against
each baseline k, on all clusters in which both have scores, with Y_c = sum (X_j(s) - X_k(s)) / (largest * span). Method
j is reported to beat every baseline if each of these wealths reaches J / level, where J is the number of methods. By
the same argument, this report is wrong with a probability of at most `level`. This bound is valid even if the data
select the method, and also if clusters are added after the race (`Race.beats`).

Unbounded scores have no `span`. The sign of the difference is used instead (span 1), so that a candidate is ahead if
the samples on which it is better outnumber those on which it is worse.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from math import inf, log

import numpy as np

from saliency_bench.read.statistics.betting import BETS, STEPS, WEIGHTS, log_wealth
from saliency_bench.read.statistics.clusters import sums_by_cluster

LEVEL = 0.05
LEAST = 1e-9  # growth of log-wealth per cluster; smaller growth is ignored
# Reasons that end a race, as stored in choice.json and shown on its page.
ONE_LEFT, ALIKE = "only one explainer is left", "the remaining explainers are alike"
NO_IMAGES, NO_TIME = "no more images may be used for the decision", "the time was up"


@dataclass(frozen=True)
class Dropped:
    """A candidate that was dropped.

    Attributes:
        name: Name of the candidate.
        clusters: Number of clusters seen when the candidate was dropped.
        wealth: Logarithm of the wealth, which is the evidence against the candidate.
        behind: Lower bound on the distance behind the best candidate, in units of the score; 0 if only the sign is
            certain.
        leader: Opponent in the last look.
    """

    name: str
    clusters: int
    wealth: float
    behind: float
    leader: str


@dataclass
class _Bets:
    """Losses of a candidate against its opponents: sum of differences and number of samples for each cluster."""

    losses: np.ndarray = field(default_factory=lambda: np.empty(0))
    counts: np.ndarray = field(default_factory=lambda: np.empty(0))

    def add(self, losses: np.ndarray, counts: np.ndarray) -> None:
        """Add the clusters of a look."""
        self.losses = np.concatenate([self.losses, losses])
        self.counts = np.concatenate([self.counts, counts])

    def scaled(self, margin: float, span: float, largest: int) -> np.ndarray:
        """Return Y of every cluster."""
        return (self.losses - margin * self.counts) / (largest * (span + margin))


def clusters_needed(scaled: np.ndarray, threshold: float) -> int | None:
    """Return the number of similar clusters needed to raise the log-wealth to `threshold`, or None if none suffices."""
    if not len(scaled):
        return None
    growth = np.log1p(BETS[:, None] * scaled[None, :]).mean(axis=1)
    rising = growth > LEAST
    if not rising.any():
        return None
    return int(np.ceil(((threshold - np.log(WEIGHTS[rising])) / growth[rising]).min()))


class Race:
    """Race of candidates on one metric. It keeps track of the dropped candidates.

    Args:
        names: Names of the candidates.
        span: Largest possible difference between two scores; if infinite, only the signs of differences are used.
        margin: Candidates within this distance of the best are protected from being dropped, like the best candidate
            itself.
        level: Upper bound on the probability that a protected candidate is ever dropped.
        largest: Largest number of samples in a cluster.
    """

    def __init__(
        self, names: list[str], span: float, margin: float = 0.0, level: float = LEVEL, largest: int = 1
    ) -> None:
        self.names, self.margin, self.level, self.largest = list(names), margin, level, largest
        self.by_sign = span == inf
        self.span = 1.0 if self.by_sign else span
        self.dropped: dict[str, Dropped] = {}
        self.excluded: set[str] = set()
        self._bets = {name: _Bets() for name in names}
        self._duels: dict[tuple[str, str], _Bets] = {}

    @property
    def left(self) -> list[str]:
        """Return the candidates that are neither dropped nor excluded."""
        return [name for name in self.names if name not in self.dropped and name not in self.excluded]

    @property
    def threshold(self) -> float:
        """Return the log-wealth at which the next candidate is dropped. Excluded candidates are included in K."""
        return log((len(self.names) - len(self.dropped)) / self.level)

    def exclude(self, name: str) -> None:
        """Remove a candidate for a reason other than its scores."""
        self.excluded.add(name)

    def look(
        self, scores: Mapping[str, np.ndarray], codes: np.ndarray, leader: str, second: str, seen: int
    ) -> list[Dropped]:
        """Bet on the samples of a look and return the candidates that are dropped.

        Args:
            scores: {candidate: oriented scores (n,), NaN if missing} of samples that no earlier look contained.
            codes: Cluster (n,) of each sample.
            leader: Opponent of all others, chosen before these samples were seen.
            second: Opponent of the leader.
            seen: Number of clusters in this look and all earlier ones.
        """
        for name in self.left:
            opponent = second if name == leader else leader
            differences = self.differences(scores[opponent], scores[name])
            common = np.isfinite(differences)
            clusters = int(codes.max(initial=-1)) + 1
            losses = sums_by_cluster(np.where(common, differences, 0.0), codes, clusters)
            self._bets[name].add(losses, sums_by_cluster(common.astype(float), codes, clusters))
        return self._drop(leader, second, seen)

    def duel(self, scores: Mapping[str, np.ndarray], codes: np.ndarray, baselines: Set[str]) -> None:
        """Update the bets of each method against each baseline with samples that no bet has used yet.

        Samples that lack one of the two scores are skipped.

        Args:
            scores: As in `look`.
            codes: As in `look`.
            baselines: Candidates that ignore the network.
        """
        clusters = int(codes.max(initial=-1)) + 1
        for method in scores.keys() - baselines:
            for baseline in scores.keys() & baselines:
                differences = self.differences(scores[method], scores[baseline])
                common = np.isfinite(differences)
                leads = sums_by_cluster(np.where(common, differences, 0.0), codes, clusters)
                bets = self._duels.setdefault((method, baseline), _Bets())
                bets.add(leads, sums_by_cluster(common.astype(float), codes, clusters))

    def beats(self, method: str, baselines: Set[str]) -> bool:
        """Return whether a method is shown to be better than each of these baselines."""
        methods = sum(name not in baselines for name in self.names)
        nothing = _Bets()
        wealth = (
            log_wealth(self._duels.get((method, baseline), nothing).scaled(0.0, self.span, self.largest))
            for baseline in baselines
        )
        return all(evidence >= log(methods / self.level) for evidence in wealth)

    def differences(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return first minus second (n,), or its sign for unbounded scores."""
        return np.sign(first - second) if self.by_sign else first - second

    def wealth(self, name: str, margin: float | None = None) -> float:
        """Return the log-wealth, the evidence that a candidate is more than `margin` behind the best."""
        margin = self.margin if margin is None else margin
        return log_wealth(self._bets[name].scaled(margin, self.span, self.largest))

    def bets(self, name: str) -> int:
        """Return the number of clusters on which a candidate has bet."""
        return len(self._bets[name].losses)

    def needed(self, name: str, errors: float = 0.0) -> int | None:
        """Return the number of clusters needed to drop a candidate if further clusters resemble the earlier ones.

        Args:
            name: Name of the candidate.
            errors: Number of standard errors by which the mean of further clusters exceeds the observed mean.

        Returns:
            Number of clusters, or None if the candidate would never be dropped.
        """
        scaled = self._bets[name].scaled(self.margin, self.span, self.largest)
        if errors and len(scaled) > 1:
            scaled = np.clip(scaled + errors * scaled.std(ddof=1) / np.sqrt(len(scaled)), -1, 1)
        return clusters_needed(scaled, self.threshold)

    def behind(self, name: str) -> float:
        """Return a lower bound on how far a candidate is behind the best, or 0 if unknown."""
        enough = log(len(self.names) / self.level)
        low, high = 0.0, self.span
        if self.wealth(name, low) < enough:
            return 0.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.wealth(name, middle) >= enough else (low, middle)
        return low

    def _drop(self, leader: str, second: str, seen: int) -> list[Dropped]:
        """Drop all candidates whose wealth reaches the threshold, starting with the strongest evidence."""
        wealth = {name: self.wealth(name) for name in self.left}
        dropped = []
        for name in sorted(wealth, key=lambda name: -wealth[name]):
            if len(self.left) == 1 or wealth[name] < self.threshold:
                break
            opponent = second if name == leader else leader
            self.dropped[name] = Dropped(name, seen, wealth[name], self.behind(name), opponent)
            dropped.append(self.dropped[name])
        return dropped
