"""Components of a cell's id, used by runs, `run.json` and the validation of submissions."""

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
PARTNERS = "partners"  # key of `asked_for`

# Fields that were added later are hashed only if they differ from these values, so that earlier ids stay valid.
LATER = {"activation": "softmax", "label_column": "label", "mask_values": ""}


class Identity(StrictModel):
    """All settings on which the scores of a run depend, except explainer and metric. They determine the cells' ids.

    Attributes:
        fingerprint: Hash of the content of the dataset's split (`data.loading.fingerprint`).
        split: Name of the split.
        classifier: Digest of the weights, normalisation and structure.
        geometry: Resizing and cropping of the images.
        layer: Layer that Grad-CAM uses; null for the last feature map before any pooling.
        target: Target rule. The rule includes the content of a target file, the members of groups, or a hash of another
            model whose predictions are the targets. The rule is not hashed for a metric that defines its own targets.
        labels: For each class of the dataset, the matching classes of the model. Hashed if the target is the label,
            and for metrics that need labels.
        label_column: Column of the dataset with the labels; hashed in the same cases as `labels`.
        activation: Activation that turns logits into probabilities; "binary" is a sigmoid of a single logit, with two
            classes.
        precision: Floating-point precision, plus the memory layout if it is not the default.
        seed: Seed of all random draws.
        groups: Hash of the groups of classes; hashed for metrics that need groups.
        mask_values: Mask values that mark the object, if the user chose them; hashed for metrics that need masks.

    The additional inputs of a metric are passed as `asked_for`, {name: hash}, and affect only the ids of its cells:

    column NAME   content of this column of the dataset
    other model   the fields above for a run of the other model, and the content of its label column
    partners      the metric's plan, which specifies the samples that it combines. A different `limit` may change the
                  plan and thus the cell's id; `only` does not
    set of training images  images on which networks are retrained
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
        """Return the id of the cell of an explainer and a metric with these inputs: 16 hexadecimal digits."""
        return CellIds(self).id_of(explainer, metric, inputs, asked_for)

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `mask_values` if none are given, so that earlier files and hashes stay valid."""
        return {name: value for name, value in write(self).items() if name != "mask_values" or value}

    @property
    def target_range(self) -> TargetRange | None:
        """Return the range of the rule's targets; None for a target file, because only its hash is stored."""
        rule = self.target.partition(" ")[0]
        if rule == "label":
            return TargetRange.of_classes(max(map(len, [[0], *self.labels])), 0, self.activation)
        counts = {"predicted": (1, 0), "predicted-by": (1, 0), "contrast:second": (1, 1)}.get(rule)
        return None if counts is None else TargetRange.of_classes(*counts, self.activation)


class CellIds:
    """Computes the ids of the cells of one identity. The fields of the identity are serialised only once."""

    def __init__(self, identity: Identity):
        """Store the identity of the cells."""
        self.identity = identity
        self._common: dict[tuple[bool, ...], str] = {}

    def id_of(
        self,
        explainer: Versioned,
        metric: Versioned,
        inputs: Collection[str] = (),
        asked_for: Mapping[str, str] = NOTHING,
    ) -> str:
        """Return the id of a cell; see `Identity.cell_id`."""
        of_target = bool(OF_TARGET & set(inputs))
        of_labels = "labels" in inputs or (of_target and self.identity.target == "label")
        needs = (of_target, of_labels, "masks" in inputs)
        common = self._common.get(needs) or self._written(*needs)
        more = [self.identity.groups] if "groups" in inputs else []
        rest = canonical([explainer, metric, *more, *([dict(asked_for)] if asked_for else [])])
        return hash_of_text(f"[{common}, {rest[1:]}")  # equals `hash_of` of all entries

    def _written(self, of_target: bool, of_labels: bool, of_masks: bool) -> str:
        """Return the fields of the identity that are hashed for a metric, as canonical JSON."""
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
        """Yield all possible ids of a cell whose metric's inputs are unknown, one per combination of inputs."""
        groups = [[], ["groups"]] if self.identity.groups is not None else [[]]
        masks = [[], ["masks"]] if self.identity.mask_values else [[]]
        for inputs in product((["target"], []), ([], ["labels"]), groups, masks):
            yield self.id_of(explainer, metric, list(chain(*inputs)), asked_for)
