"""What a cell's id is made of: one table, used by a run, by its `run.json` and by the check of a submission."""

from collections.abc import Collection

from pydantic import JsonValue

from saliency_bench.results.cell import Hash, StrictModel, Text
from saliency_bench.utils.hashing import hash_of

Versioned = tuple[str, str, int | str]  # name, options as canonical JSON, version

OPTIONAL = ("groups",)  # entries that count only for the metrics that ask for them, by the name of the need


class Identity(StrictModel):
    """Everything but explainer and metric that a score depends on; any other value is another cell.

    fingerprint   content of the dataset's split (`data.loading.fingerprint`)
    split         its name
    classifier    digest of the weights, normalisation and structure
    geometry      how images are prepared
    layer         the layer Grad-CAM reads; null: the last convolutional block
    target        the target rule; of a file its content, with groups their members
    labels        for each class of the dataset, the classes of the model that stand for it
    precision     arithmetic, and the memory layout where it is not the usual one
    seed          of whatever is drawn at random
    groups        hash of the groups of classes; counts for metrics that ask for groups
    """

    fingerprint: Hash
    split: Text
    classifier: Hash
    geometry: dict[str, JsonValue]
    layer: str | None
    target: Text
    labels: list[list[int]]
    precision: Text
    seed: int
    groups: Text | None = None

    def cell_id(self, explainer: Versioned, metric: Versioned, needs: Collection[str] = ()) -> str:
        """The id of the cell of an explainer and a metric with these needs: 16 hexadecimal digits."""
        common = self.model_dump(mode="json", exclude=set(OPTIONAL))
        asked = [getattr(self, name) for name in OPTIONAL if name in needs]
        return hash_of(common, explainer, metric, *asked)

    def cell_ids(self, explainer: Versioned, metric: Versioned) -> list[str]:
        """The ids of a cell whose metric's needs are not known: without optional entries, and with those there are."""
        known = [name for name in OPTIONAL if getattr(self, name) is not None]
        return [self.cell_id(explainer, metric, needs) for needs in ([[], known] if known else [[]])]
