"""Define loaded parts of a run: the prediction task (classes, labels, targets) and the data of retraining metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.reading import TrainingRows
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.label_maps import Members
from saliency_bench.compute.targets.rules import TargetRule
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.read.network_answers import NetworkAnswers
from saliency_bench.utils.hashing import hash_of


@dataclass(frozen=True)
class RunQuestion:
    """Prediction task of a run: classes and activation of the network, labels of the dataset, and targets of the maps.

    Attributes:
        names: Class names of the dataset; None if it has no labels.
        classes: Number of the network's classes.
        activation: Activation of the network's logits.
        members: Matching classes of the model for each class of the dataset; None if the classes are not matched.
        unlabelled: Why `members` is None, in a few words.
        groups: Groups of the model's classes; None if unknown.
        rule: Rule that chooses the target of each sample.
        named_by: Logits of the model that chooses the targets, for fixed pictures; None if no other model chooses them.
        by_position: Whether the model has no class names, so its classes are assumed to be in the dataset's order.
    """

    names: list[str] | None
    classes: int
    activation: str
    members: Members | None
    unlabelled: str
    groups: ClassGroups | None
    rule: TargetRule
    named_by: NetworkAnswers | None = None
    by_position: bool = False

    def right(self, row: Mapping) -> np.ndarray | None:
        """Return the correct classes of a sample, bool (K,); None if no labels are known.

        The classes of the sample's label are correct; without a label, no class is correct. For an image with several
        labels and a softmax, which predicts one class, the classes of all labels are correct.
        """
        if self.members is None:
            return None
        label, several = row["label"], row["labels"]
        alone = label is not None and (self.activation != "softmax" or several is None)
        right = np.zeros(self.classes, dtype=bool)
        right[[member for number in ([label] if alone else several or []) for member in self.members[number]]] = True
        return right

    def target_of(self, row: Mapping, logits: np.ndarray) -> TargetTerms:
        """Return the target of a sample, given the network's logits (K,) for it.

        Raises:
            UserError: The sample has no target.
        """
        return self.rule.terms(row["image_id"], row["label"], logits, self.members)

    def has_target(self, row: Mapping) -> bool:
        """Return whether a sample has a target."""
        return self.rule.has_target(row["image_id"], row["label"], self.members)

    def label_of(self, row: Mapping) -> str | None:
        """Return the name of a sample's label."""
        return None if self.names is None or row["label"] is None else self.names[row["label"]]


@dataclass(frozen=True)
class Retraining:
    """Data of retraining metrics; empty if a run has no retraining metrics.

    Attributes:
        rows: {split: rows} that networks are retrained on.
        base: Checkpoint from which the classifier was fine-tuned; None if no metric uses the checkpoint.
        controls: Explainers that retraining metrics use as controls and that no other metric scores.
        classes: {cell id: (N, P) classes that the retrained networks predict for the samples}; `retraining.stage`
            fills it before batches are computed.
    """

    rows: dict[str, TrainingRows] = field(default_factory=dict)
    base: Classifier | None = None
    controls: frozenset[Explainer] = frozenset()
    classes: dict[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def trained_on(self) -> str:
        """Return a hash of the images that networks are retrained on."""
        return hash_of([split.content for split in self.rows.values()])
