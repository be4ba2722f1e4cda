"""Components of a cell's id: one table for runs, their `run.json` and the check of submissions."""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain, product
from typing import Any, Literal

from pydantic import JsonValue, SerializerFunctionWrapHandler, model_serializer

from saliency_bench.bound_metric import OF_TARGET
from saliency_bench.read.cell import Hash, Line, StrictModel, Text
from saliency_bench.target_weights import TargetRange
from saliency_bench.utils.hashing import canonical, hash_of_text

Versioned = tuple[str, str, int | str]  # name, options as canonical JSON, version
NOTHING: Mapping[str, str] = {}
PARTNERS = "partners"  # of `asked_for`

# Entries that came later count only where they have another value, so that ids made before stay as they are.
LATER = {"activation": "softmax", "label_column": "label", "mask_values": ""}


class Identity(StrictModel):
    """Everything but explainer and metric that all scores of a run depend on; any other value is another cell.

    fingerprint   content of the dataset's split (`data.loading.fingerprint`)
    split         its name
    classifier    digest of the weights, normalisation and structure
    geometry      how images are prepared
    layer         the layer Grad-CAM reads; null: the last feature map before any pooling
    target        the target rule; of a file its content, with groups their members, of predictions of another model
                  a hash of that model; no part of the cells of a metric that asks a question of its own
    labels        for each class of the dataset, the classes of the model that stand for it; counts where the target is
                  the label, and for metrics that ask for labels
    label_column  the column of the dataset that is the label; counts as `labels`
    activation    what turns logits into probabilities; "binary": a sigmoid of a single logit, with two classes
    precision     arithmetic, and the memory layout where it is not the usual one
    seed          of whatever is drawn at random
    groups        hash of the groups of classes; counts for metrics that ask for groups
    mask_values   which pixels of masks are the object, if the user chose; counts for metrics that need masks

    What else a metric asks for is in `asked_for` of its cells, by its name with a hash, and counts for these alone:

    column NAME   what this column of the dataset holds
    other model   the entries above of a run of the other model, and what the column of its labels holds
    partners      which samples go with which, by the metric's plan over the samples of the run: another `limit` may
                  give another plan and so another cell, `only` does not
    set of training images  what networks are retrained on
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
    activation: Literal["softmax", "sigmoid", "binary"] = "softmax"
    label_column: Text = "label"
    mask_values: Line = ""

    def cell_id(
        self,
        explainer: Versioned,
        metric: Versioned,
        inputs: Collection[str] = (),
        asked_for: Mapping[str, str] = NOTHING,
    ) -> str:
        """Return the id of the cell of an explainer and a metric that takes these inputs: 16 hexadecimal digits."""
        return CellIds(self).id_of(explainer, metric, inputs, asked_for)

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `mask_values` if none are given, so that earlier files and hashes stay valid."""
        return {name: value for name, value in write(self).items() if name != "mask_values" or value}

    @property
    def target_range(self) -> TargetRange | None:
        """Return the range of the targets of the rule; None of a file, of which only the hash is known here."""
        rule = self.target.partition(" ")[0]
        if rule == "label":
            return TargetRange.of_classes(max(map(len, [[0], *self.labels])), 0, self.activation)
        counts = {"predicted": (1, 0), "predicted-by": (1, 0), "contrast:second": (1, 1)}.get(rule)
        return None if counts is None else TargetRange.of_classes(*counts, self.activation)


class CellIds:
    """The ids of the cells of one identity, whose entries are written once for all of them."""

    def __init__(self, identity: Identity):
        """Take the identity that all these cells have."""
        self.identity = identity
        self._common: dict[tuple[bool, ...], str] = {}

    def id_of(
        self,
        explainer: Versioned,
        metric: Versioned,
        inputs: Collection[str] = (),
        asked_for: Mapping[str, str] = NOTHING,
    ) -> str:
        """Return `Identity.cell_id`."""
        of_target = bool(OF_TARGET & set(inputs))
        of_labels = "labels" in inputs or (of_target and self.identity.target == "label")
        needs = (of_target, of_labels, "masks" in inputs)
        common = self._common.get(needs) or self._written(*needs)
        more = [self.identity.groups] if "groups" in inputs else []
        rest = canonical([explainer, metric, *more, *([dict(asked_for)] if asked_for else [])])
        return hash_of_text(f"[{common}, {rest[1:]}")  # as `hash_of` all of them

    def _written(self, of_target: bool, of_labels: bool, of_masks: bool) -> str:
        """Return the entries of the identity that count for a metric, as canonical JSON."""
        left_out = {"groups"} | {name for name, usual in LATER.items() if getattr(self.identity, name) == usual}
        left_out |= set() if of_target else {"target"}
        left_out |= set() if of_labels else {"labels", "label_column"}
        left_out |= set() if of_masks else {"mask_values"}
        self._common[of_target, of_labels, of_masks] = text = canonical(
            self.identity.model_dump(mode="json", exclude=left_out)
        )
        return text

    def possible(
        self, explainer: Versioned, metric: Versioned, asked_for: Mapping[str, str] = NOTHING
    ) -> Iterator[str]:
        """Yield the ids of a cell whose metric's inputs are not known: one for each thing that it may ask for."""
        groups = [[], ["groups"]] if self.identity.groups is not None else [[]]
        masks = [[], ["masks"]] if self.identity.mask_values else [[]]
        for inputs in product((["target"], []), ([], ["labels"]), groups, masks):
            yield self.id_of(explainer, metric, list(chain(*inputs)), asked_for)
