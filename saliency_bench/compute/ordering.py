"""Order a run's samples. Samples of a cluster stay together, and clusters are sorted by a hash.

The first n samples are a random sample of the dataset for every n, and a larger n only adds samples. A run with a limit
therefore computes the first batches of the full run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import datasets

from saliency_bench.compute.reading import group_names
from saliency_bench.data.loading import sample_ids
from saliency_bench.read.statistics.clusters import cluster_names
from saliency_bench.utils.seeds import seed_of


@dataclass(frozen=True)
class Order:
    """The order of a run's samples.

    Attributes:
        positions: Positions of the rows in the dataset, in the run's order.
        clusters: Name of each row's cluster, in the same order.
    """

    positions: list[int]
    clusters: list[str]

    def first(self, limit: int | None) -> int:
        """Return the number of samples within a limit.

        Whole clusters are added until there are at least `limit` samples.
        """
        count = len(self.clusters)
        if limit is None or limit >= count:
            return count
        last = self.clusters[limit - 1]
        return next((index for index in range(limit, count) if self.clusters[index] != last), count)


def order_of(ids: Sequence[str], groups: Sequence[str | None], seed: int, fingerprint: str) -> Order:
    """Sort clusters by hash(seed, fingerprint, cluster). Samples within a cluster keep the dataset's order.

    Args:
        ids: Ids of the dataset's rows.
        groups: Group of each row. A group is a cluster, and a sample without a group is a cluster of its own.
        seed: Seed of the run.
        fingerprint: Fingerprint of the dataset.
    """
    names = cluster_names(ids, groups)
    drawn = {name: (seed_of(seed, fingerprint, name), name) for name in names}
    positions = sorted(range(len(names)), key=lambda position: drawn[names[position]])
    return Order(positions, [names[position] for position in positions])


def first_positions(rows: datasets.Dataset, limit: int | None, seed: int, fingerprint: str) -> list[int]:
    """Return the positions of the rows within a limit, in the dataset's own order."""
    if limit is None or limit >= len(rows):
        return list(range(len(rows)))
    order = order_of(sample_ids(rows), group_names(rows), seed, fingerprint)
    return sorted(order.positions[: order.first(limit)])


def first_rows(rows: datasets.Dataset, limit: int | None, seed: int, fingerprint: str) -> datasets.Dataset:
    """Return the rows within a limit, in the dataset's own order."""
    positions = first_positions(rows, limit, seed, fingerprint)
    return rows if len(positions) == len(rows) else rows.select(positions)
