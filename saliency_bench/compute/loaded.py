"""Define the loaded parts of a run: its networks, the prediction task, and the data for retraining metrics."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from saliency_bench.bound_explainer import Explainer
from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.reading import OWN_LABEL, ReadBatch, Selection, TrainingRows, read_batch, relabelled
from saliency_bench.compute.scoring.partners import PartnerSamples
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.compute.targets.label_maps import Members
from saliency_bench.compute.targets.rules import TargetRule
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError
from saliency_bench.read.identity import Identity
from saliency_bench.read.manifest import Loaded
from saliency_bench.read.network_answers import NetworkAnswers
from saliency_bench.read.public_names import public_name
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.mask_values import spelled
from saliency_bench.utils.seeds import seed_of

OTHER = "other_predictions"
Pairs = dict[Explainer, list[Metric]]  # {explainer: metrics that score its maps}


def metrics_of(pairs: Pairs) -> list[Metric]:
    """Return the metrics of all explainers without duplicates."""
    return list(dict.fromkeys(chain(*pairs.values())))


@dataclass(frozen=True)
class RunQuestion:
    """Prediction task of a run: classes and activation of the network, labels of the dataset, and targets of the maps.

    Attributes:
        names: Class names of the dataset; None if it has no labels.
        classes: Number of the network's classes.
        activation: Activation of the network's logits.
        members: For each class of the dataset, the matching classes of the model. None if the classes are not matched.
        unlabelled: Short reason why `members` is None.
        groups: Groups of the model's classes; None if unknown.
        rule: Rule that chooses the target of each sample.
        named_by: If the targets are predictions of another model, that model's logits for fixed images; else None.
        by_position: Whether the model has no class names, so its classes are assumed to be in the dataset's order.
        selection: Samples to explain; None for all.
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
    selection: Selection | None = None

    def right(self, row: Mapping) -> np.ndarray | None:
        """Return the correct classes of a sample, bool (K,), or None if no labels are known.

        The classes of the sample's label are correct. If there is no label, no class is correct. For an image with
        several labels and a softmax, which predicts one class, the classes of all labels are correct.
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
    """Data for retraining metrics; empty if the run has none.

    Attributes:
        rows: {split: rows} that networks are retrained on.
        base: Checkpoint from which the classifier was fine-tuned; None if no metric uses the checkpoint.
    """

    rows: dict[str, TrainingRows] = field(default_factory=dict)
    base: Classifier | None = None

    @cached_property
    def trained_on(self) -> str:
        """Return a hash of the images that networks are retrained on."""
        return hash_of([split.content for split in self.rows.values()])


@dataclass(frozen=True)
class RunModel:
    """Network of a run, and its prediction task.

    Attributes:
        classifier: The network.
        question: Classes, labels and targets for predicting and explaining samples.
        label_column: Column of the dataset with the labels.
        folder: Folder of the network's predictions, inside the folder of the run.
        label_hash: Hash of the label column, set only for the other network. The labels of the run's network are part
            of the fingerprint of the samples.
        retraining: Data for retraining networks of the same structure.
        other: Second network, which predicts a different label column of the same samples; None if there is none.
    """

    classifier: Classifier
    question: RunQuestion
    label_column: str = "label"
    folder: str = "predictions"
    label_hash: str = ""
    retraining: Retraining = field(default_factory=Retraining)
    other: "RunModel | None" = None

    @property
    def both(self) -> "list[RunModel]":
        """Return this network and, if there is one, the other network."""
        return [self] if self.other is None else [self, self.other]

    @property
    def name(self) -> str:
        """Return the network's name in results. It does not depend on where the network was loaded from."""
        return public_name(self.classifier.id, self.classifier.repo is None)

    @property
    def loaded_from(self) -> Loaded:
        """Return the name or path that the network was loaded from."""
        return Loaded(id=self.name, repo=self.classifier.repo, revision=self.classifier.revision)

    @property
    def class_names(self) -> list[str] | None:
        """Return the network's class names.

        If the network has no class names and uses the dataset's order, return the dataset's class names.
        """
        names = self.question.names
        if self.question.by_position and names is not None and len(names) == self.question.classes:
            return names
        return self.classifier.labels

    @cached_property
    def hashes(self) -> tuple[str, dict[str, str]]:
        """Return (digest of the network, {part: hash})."""
        return self.classifier.hashes()

    def of_other(self, read: ReadBatch) -> ReadBatch:
        """Return a batch with the labels that the other network predicts."""
        assert self.other is not None
        column = self.other.label_column
        if column == self.label_column:
            return read
        return relabelled(read, OWN_LABEL if column == "label" else column, self.other.question.names or [])

    def partners(self, data: SplitTable, positions: Sequence[int]) -> PartnerSamples:
        """Return the samples at these positions as partners: images that a metric combines with other samples."""
        positions = tuple(positions)
        if positions not in self._partners:
            self._partners.clear()  # several explainers in a row need the same partners
            read = read_batch(data.samples, self.classifier, positions, strict=False)
            for position, reason in read.faults.items():  # the sample could be read when it was predicted
                raise UserError(f"image {data.samples.ids[position]}: {reason}")
            assert read.samples is not None
            batch, right = read.samples.batch, [self.question.right(row) for row in read.rows]
            nothing = np.zeros(self.question.classes, dtype=bool)
            self._partners[positions] = PartnerSamples(
                ids=batch.ids,
                images=batch.images,
                right=np.stack([nothing if classes is None else classes for classes in right]),
                seeds=[seed_of(data.spec.seed, image_id, "explain") for image_id in batch.ids],
            )
        return self._partners[positions]

    @cached_property
    def _partners(self) -> dict[tuple[int, ...], PartnerSamples]:
        """Return the cache of the partners that were read last, {positions: samples}. `partners` fills the cache."""
        return {}


def identity_of(data: SplitTable, model: RunModel) -> Identity:
    """Return the settings that all cells of a network share."""
    spec, classifier, question = data.spec, model.classifier, model.question
    entries = {
        "fingerprint": data.fingerprint,
        "label_column": model.label_column,
        "split": spec.split,
        "classifier": model.hashes[0],
        "geometry": classifier.geometry.as_dict(),
        "layer": classifier.layer,
        "target": question.rule.identity,
        "labels": question.members or [],
        "activation": classifier.activation,
        "precision": classifier.arithmetic,
        "seed": spec.seed,
        "groups": None if question.groups is None else question.groups.identity,
        # Only the network of the run has masks.
        "mask_values": "" if model.folder == OTHER else spelled(" ".join(spec.mask_values or ())),
    }
    return Identity.model_validate_json(json.dumps(entries))  # tuples become lists, as in a file
