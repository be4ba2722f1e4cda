"""Load the rows of a run's dataset, with the columns that settings and metrics need. No network is loaded."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import datasets
import pyarrow as pa

from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.ordering import Order, order_of
from saliency_bench.compute.reading import (
    ReadBatch,
    Selection,
    SplitRows,
    check_further,
    group_names,
    label_names,
    labelled,
    prediction_schema,
    read_batch,
    readable,
    selection_of,
)
from saliency_bench.data.build_report import HIDDEN
from saliency_bench.data.fingerprints import column_of, content_of
from saliency_bench.data.loading import FoundDataset, find, sample_ids, with_pictures
from saliency_bench.data.untrusted_reports import check_samples
from saliency_bench.errors import UserError
from saliency_bench.read.manifest import Loaded
from saliency_bench.spec import RunSpec
from saliency_bench.utils.messages import complain


@dataclass(frozen=True)
class SplitTable:
    """The dataset split of a run. It provides the rows in the dataset's order and the samples in the run's order.

    Attributes:
        spec: Settings of the run. They contain the name of the loaded split.
        source: The dataset, including the name or path that it was loaded from.
        published: Rows as loaded. Additional columns that contain pictures are decoded as pictures.
        labelled: Rows of `published` with the spec's label column as label.
        names: Class names of the dataset; None if it has no labels.
        further: Names of the existing additional columns that metrics need.
        selection: Samples that match `--only`; None for all.
    """

    spec: RunSpec
    source: FoundDataset
    published: datasets.Dataset
    labelled: datasets.Dataset
    names: list[str] | None
    further: list[str]
    selection: Selection | None

    @cached_property
    def rows(self) -> datasets.Dataset:
        """Return the rows in the dataset's order, with only the columns that a run reads."""
        return readable(self.labelled, self.further)

    @cached_property
    def ids(self) -> list[str]:
        """Return the ids of the images.

        Raises:
            UserError: An id occurs twice. Ids must be unique because they identify records, random draws and pictures.
        """
        ids = sample_ids(self.rows)
        if len(set(ids)) < len(ids):
            twice, times = Counter(ids).most_common(1)[0]
            raise UserError(f"the image id {twice} occurs {times} times; use a unique id for every sample")
        return ids

    @cached_property
    def contents(self) -> dict[str, tuple[str, list[str]]]:
        """Return {name of an additional column: (hash of the column, digests of its pictures)}."""
        return {name: column_of(self.published, name) for name in self.further}

    @cached_property
    def content(self) -> tuple[str, list[str]]:
        """Return (fingerprint, digests of the samples)."""
        return content_of(self.published)

    @cached_property
    def order(self) -> Order:
        """Return the order of the run's samples."""
        return order_of(self.ids, group_names(self.rows), self.spec.seed, self.fingerprint)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the split, computed in the dataset's order."""
        return self.content[0]

    @property
    def count(self) -> int:
        """Return the number of samples in the run. The run consists of whole groups, in the run's order."""
        return self.order.first(self.spec.limit)

    @cached_property
    def samples(self) -> SplitRows:
        """Return all samples in the run's order."""
        places, digests = self.order.positions, self.content[1]
        return SplitRows(
            self.rows.select(places),
            [self.ids[place] for place in places],
            [digests[place] for place in places],
            {name: [further[place] for place in places if further] for name, (_, further) in self.contents.items()},
            self.spec.mask_values,
        )

    @cached_property
    def batches(self) -> list[range]:
        """Return the positions of each batch. The last batch is always complete, even if the limit falls inside it."""
        size = self.spec.batch_size
        return [range(start, min(start + size, len(self.rows))) for start in range(0, self.count, size)]

    @property
    def end(self) -> int:
        """Return the position after the last batch."""
        return self.batches[-1].stop

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the schema of the predictions table."""
        return prediction_schema(self.rows.features)

    @property
    def loaded_from(self) -> Loaded:
        """Return the name or path that the dataset was loaded from."""
        return Loaded(id=self.source.name, repo=self.source.repo, revision=self.source.revision)

    def read(self, classifier: Classifier, positions: Sequence[int]) -> ReadBatch:
        """Read the samples at these positions, and prepare them for a network.

        Raises:
            UserError: A sample cannot be read, and the run is strict.
        """
        return read_batch(self.samples, classifier, positions, self.spec.strict)

    def with_settings(self, **changes: object) -> "SplitTable":
        """Return a copy with changed settings. The samples are not read again, so the settings must not affect them."""
        table = replace(self, spec=self.spec.model_copy(update=changes))
        vars(table).update({name: value for name, value in vars(self).items() if name not in vars(table)})
        return table


def table_of(spec: RunSpec, dataset: Any, metrics: list[Metric]) -> SplitTable:
    """Load the dataset of a spec. Print which columns are missing and what cannot be computed without them.

    Raises:
        UserError: The dataset cannot be loaded, is empty, or lacks the label column of the spec.
    """
    source = find(dataset)
    published, split = source.load_usual(spec.split)
    spec = spec.model_copy(update={"split": split})
    if len(published) == 0:
        raise UserError(f"the split {spec.split} of {spec.dataset} is empty")
    further = _further_columns(published, metrics, source.name)
    published = with_pictures(published, further)
    check_further(published, further)
    rows = labelled(published, spec.label_column)
    check_samples(rows)
    _say_what_is_missing(published, metrics, is_hidden=source.hidden_masks == split)
    names = label_names(rows)
    return SplitTable(spec, source, published, rows, names, further, selection_of(spec.only, rows, names))


def _further_columns(rows: datasets.Dataset, metrics: list[Metric], name: str) -> list[str]:
    """Return the existing columns that metrics need. Print a message for each missing column."""
    asking: dict[str, list[str]] = {}
    for metric in metrics:
        for column in metric.declaration.columns:
            asking.setdefault(column, []).append(metric.name)
    for column in asking.keys() - set(rows.column_names):
        shown = f"{', '.join(asking[column])} {'have' if len(asking[column]) > 1 else 'has'} no scores"
        complain(f"the dataset {name} has no column {column} (it has: {', '.join(rows.column_names)}): {shown}")
    return [column for column in asking if column in rows.column_names]


def _say_what_is_missing(rows: datasets.Dataset, metrics: list[Metric], *, is_hidden: bool) -> None:
    """Print one message that says which columns are missing or hidden, and what cannot be computed without them."""
    asking = [metric.name for metric in metrics if "masks" in metric.inputs]
    masks = rows.data.column("mask") if "mask" in rows.column_names else None
    missing = ["image_id"] * ("image_id" not in rows.column_names) + ["mask"] * (masks is None and bool(asking))
    follows = ["samples are identified by their positions"] if "image_id" in missing else []
    if asking and (masks is None or masks.null_count == len(masks)):
        follows.append(f"{', '.join(asking)} {'have' if len(asking) > 1 else 'has'} no scores")
    named = f"has no column {' and no column '.join(missing)} (it has: {', '.join(rows.column_names)})"
    if follows:
        if is_hidden:
            named, missing = "hides the masks of this split", [HIDDEN]
            follows.append("a board scores submitted maps if the submission contains their values (submit --with-maps)")
        complain(f"the dataset {named if missing else 'has no masks'}: {'; '.join(follows)}")
