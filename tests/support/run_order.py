"""What several test files need to name the samples of a run."""

from saliency_bench.compute.ordering import order_of
from saliency_bench.compute.reading import group_names
from saliency_bench.data.loading import fingerprint, sample_ids


def in_run_order(rows, seed=0):
    """The rows of a dataset as a run takes them: its first N are those of `limit=N`."""
    return rows.select(order_of(sample_ids(rows), group_names(rows), seed, fingerprint(rows)).positions)
