"""Define the order of a run's samples for tests."""

from saliency_bench.compute.ordering import order_of
from saliency_bench.compute.reading import group_names
from saliency_bench.data.loading import fingerprint, sample_ids


def in_run_order(rows, seed=0):
    """Return the rows of a dataset in a run's order; the first N rows are the samples of `limit=N`."""
    return rows.select(order_of(sample_ids(rows), group_names(rows), seed, fingerprint(rows)).positions)
