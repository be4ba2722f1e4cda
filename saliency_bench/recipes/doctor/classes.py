"""Checks of a network's predictions: outputs, accuracy, and the order of classes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from saliency_bench.compute.loaded import RunQuestion
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.read.accuracy import quality
from saliency_bench.read.cell import Interval
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.recipes.doctor.checks import ENOUGH, Check, Mark, first_few
from saliency_bench.recipes.doctor.order import NONE, ClassAssignment, better_assignment

EQUAL = 1e-5  # relative difference of logits below which two images have the same output
FAULTY = 0.1  # share of unusable images at which the check is marked wrong
WEAK = 10  # minimum number of images, all misclassified, to report a class as never recognised
FIX_ORDER = (
    "set labels= to the class names in the order of the logits, or --label-map to a file with the label_map from the "
    "--json output, and run doctor again"
)


def check_images(count: int, rows: Sequence[Mapping]) -> Check:
    """Check that the images can be read and classified. `count` is the number of images in the split."""
    unreadable = [row for row in rows if row["logits"] is None]
    values = {"images": len(rows), "of": count, "unreadable": len(unreadable)}
    text = f"{len(rows)} of {count} images were checked"
    if unreadable:
        first = unreadable[0]
        text += f"; {len(unreadable)} cannot be used, such as {first['image_id']}: {first['left_out']}"
        mark: Mark = "wrong" if len(unreadable) >= FAULTY * len(rows) else "look"
        return Check("images", mark, text, "replace or remove these images", values)
    if len(rows) < ENOUGH:
        return Check("images", "undecided", text, f"judging the accuracy requires at least {ENOUGH} images", values)
    return Check("images", "ok", text, values=values)


def check_outputs(class_names: Sequence[str] | None, rows: Sequence[Mapping]) -> Check:
    """Check that the logits are finite and depend on the image."""
    known = [row for row in rows if row["logits"] is not None]
    logits = np.array([row["logits"] for row in known])
    without = sum(row["prediction"] is None for row in known)
    if without:
        text = f"for {without} of {len(known)} images, a logit is NaN or infinite"
        return Check("outputs", "wrong", text, "look for a division by zero or an overflow in the network")
    if len(known) < 2:
        return Check("outputs", "undecided", "one image is not enough to check that the logits depend on the image")
    if np.abs(logits - logits[0]).max() <= EQUAL * max(np.abs(logits).max(), 1e-30):
        text = "the network returns the same logits for every image"
        return Check("outputs", "wrong", text, "check that its weights are loaded and that forward uses the image")
    predicted = Counter(row["prediction"] for row in known)
    values = {"predicted_classes": len(predicted), "mean_confidence": float(np.mean([r["confidence"] for r in known]))}
    labels = {row["label"] for row in known if row["label"] is not None}
    if len(predicted) == 1 and len(labels) > 1 and len(known) >= ENOUGH:
        prediction = next(iter(predicted))
        name = class_names[prediction] if class_names else f"class {prediction}"
        text = f"the network predicts {name} for all {len(known)} images"
        return Check("outputs", "wrong", text, "check its weights and its preprocessing", values)
    text = f"{len(predicted)} classes are predicted, with a mean confidence of {values['mean_confidence']:.0%}"
    return Check("outputs", "ok", text, values=values)


def check_classes(question: RunQuestion, label_map: bool, refusal: str, rows: Sequence[Mapping]) -> Check:
    """Check that the classes of the dataset match those of the network.

    Args:
        question: The prediction task, which contains the classes of the dataset and of the network.
        label_map: Whether a label map relates the classes of the dataset to those of the network.
        refusal: Reason why a run with these settings is rejected, or "" if the run is accepted.
        rows: The predictions.
    """
    if refusal or question.members is None:
        reason = refusal or f"the labels cannot be used: {question.unlabelled}"
        return Check("classes", "wrong" if refusal else "look", reason, "" if ";" in reason else "set --label-map FILE")
    names = question.names or []
    shown = sorted({row["label"] for row in rows if row["label"] is not None})
    values: dict[str, Any] = {"dataset": len(names), "network": question.classes, "shown": len(shown)}
    how = "by position, because the network has no class names" if question.by_position else "by name"
    how = "by the label map" if label_map else how
    text = f"the {len(names)} classes of the dataset are matched with the {question.classes} classes "
    text += f"of the network {how}"
    if lacking := [names[index] for index, members in enumerate(question.members) if not members]:
        values["without"] = lacking
        text += f"; the network has no class for {first_few(lacking)}"
    if len(shown) < 2:
        text += f"; all images that were checked show {names[shown[0]] if shown else 'no class'}"
        return Check(
            "classes",
            "look",
            text,
            "checking the accuracy and the order of the classes requires images of at least two classes",
            values,
        )
    return Check("classes", "ok", text, values=values)


def check_accuracy(data: SplitTable, question: RunQuestion, rows: Sequence[Mapping]) -> list[Check]:
    """Compare the accuracy and its interval with chance level, and list the classes that are never recognised."""
    if question.members is None:
        return [Check("accuracy", "undecided", "no label of the dataset is a class of the network")]
    table = pa.Table.from_pylist(list(rows), schema=data.schema)
    facts = quality(table, question.members, question.activation, data.spec.seed)
    accuracy, kind = Interval.model_validate(facts["accuracy"]), facts["accuracy_kind"]
    if accuracy.value is None:
        return [Check("accuracy", "undecided", "no image has a label that is a class of the network")]
    judged = [row for row in rows if row["correct"] is not None]
    chance = _chance(question, judged)
    low, high = accuracy.ends or (0.0, 1.0)
    by_class = {
        question.names[label] if question.names else str(label): [sum(right), len(right)]
        for label, right in sorted(_by_label(judged).items())
    }
    values = {"kind": kind, **facts["accuracy"], "chance": chance, "top5": facts["top5"], "by_class": by_class}
    span = f" [{low:.0%}, {high:.0%}]" if accuracy.ends else ""
    text = f"{kind} {accuracy.value:.1%}{span} on {accuracy.n} images"
    if kind != "accuracy":
        return [Check("accuracy", "ok" if accuracy.n >= ENOUGH else "undecided", text, values=values)]
    text += f", chance {chance:.1%}"
    if len(by_class) == 1 and high >= 1 / question.classes:
        return [Check("accuracy", "undecided", f"{text}: uninformative with a single class", values=values)]
    if accuracy.n < ENOUGH or not accuracy.ends:
        fix = f"check at least {ENOUGH} labelled images"
        return [Check("accuracy", "undecided", text, fix, values)]
    weak = [name for name, (right, count) in by_class.items() if right == 0 and count >= WEAK]
    if low > chance:
        checks = [Check("accuracy", "ok", text, values=values)]
    elif high < (1 + chance) / 2:
        fix = "the network was not trained on these classes, or the declared classes or preprocessing are wrong"
        checks = [Check("accuracy", "wrong", f"{text}: no better than chance", fix, values)]
    else:
        checks = [Check("accuracy", "undecided", f"{text}: not clearly above chance", "check more images", values)]
    if weak and low > chance:
        text = f"no image of these classes is classified correctly: {first_few(weak)}"
        fix = "check the names and the masks of these classes"
        checks.append(Check("accuracy by class", "look", text, fix, {"never_right": weak}))
    elif len(by_class) > 1:
        ranked = sorted(by_class.items(), key=lambda item: item[1][0] / item[1][1])
        lowest, (right, count) = ranked[0]
        checks.append(Check("accuracy by class", "ok", f"lowest for {lowest}: {right} of {count}", values=by_class))
    return checks


def check_order(question: RunQuestion, seed: int, rows: Sequence[Mapping]) -> tuple[Check, ClassAssignment | None]:
    """Check whether the classes are in the order of the logits.

    Returns:
        The check, and an assignment that fits better than the declared one, or None.
    """
    name = "order of classes"
    if question.members is None or question.activation == "sigmoid":
        reason = "the check requires images with a single label that is a class of the network"
        return Check(name, "undecided", f"the order cannot be checked: {reason}"), None
    if any(len(members) > 1 for members in question.members):
        return Check(name, "ok", "the order is not checked because a class of the dataset has several logits"), None
    judged = [row for row in rows if row["correct"] is not None and row["labels"] is None]
    labels = np.array([row["label"] for row in judged], dtype=int)
    if len(judged) < ENOUGH or len(set(labels.tolist())) < 2:
        kinds = len(set(labels.tolist()))
        text = f"the order cannot be checked: there are too few labelled images ({len(judged)}) or classes ({kinds})"
        return Check(name, "undecided", text, f"use at least {ENOUGH} images from at least two classes"), None
    declared = np.array([members[0] if members else NONE for members in question.members])
    predictions = np.array([row["prediction"] for row in judged], dtype=int)
    codes = cluster_codes([row["image_id"] for row in judged], [row["group"] for row in judged])
    names = question.names or [str(number) for number in range(len(declared))]
    better = better_assignment(labels, predictions, declared, question.classes, names, codes, seed)
    if better is None:
        text = "no other order of the classes explains the predictions significantly better"
        if len(judged) < 4 * len(set(labels.tolist())) and (labels.size and _accuracy(judged) < 0.5):
            text = (
                f"{len(judged)} images of {len(set(labels.tolist()))} classes are too few to detect a different order"
            )
            return Check(name, "undecided", text, "check more images with --within or --limit"), None
        return Check(name, "ok", text, values={"images": len(judged)}), None
    moved = [f"{names[index]} is logit {better.logits[index]}, not {declared[index]}"
             for index in np.flatnonzero(better.logits != declared) if (labels == index).any()]  # fmt: skip
    text = f"the predictions fit a different order of the classes ({better.name}): {better.gain}; {first_few(moved)}"
    return Check(name, "wrong", text, FIX_ORDER, better.as_dict(names)), better


def _chance(question: RunQuestion, rows: Sequence[Mapping]) -> float:
    """Return the accuracy expected from random guesses with the predictions' class frequencies, but at least 1 / K."""
    members = question.members or []
    predicted = Counter(row["prediction"] for row in rows)
    hits = sum(predicted[member] for row in rows if row["label"] is not None for member in members[row["label"]])
    return max(1 / question.classes, hits / len(rows) ** 2 if rows else 0.0)


def _by_label(rows: Sequence[Mapping]) -> dict[int, list[bool]]:
    by_label: dict[int, list[bool]] = {}
    for row in rows:
        if row["label"] is not None:
            by_label.setdefault(row["label"], []).append(row["correct"])
    return by_label


def _accuracy(rows: Sequence[Mapping]) -> float:
    return float(np.mean([row["correct"] for row in rows]))
