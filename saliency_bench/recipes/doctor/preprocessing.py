"""Checks of the preprocessing: is an alternative significantly better than the declared preprocessing?"""

from dataclasses import replace

import numpy as np

from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.recipes.doctor.checks import ALPHA, ENOUGH, Check, Gain, Mark, gains
from saliency_bench.recipes.doctor.examine import Examined
from saliency_bench.recipes.doctor.order import ClassAssignment
from saliency_bench.recipes.doctor.variants import Variant

KINDS = ("channel order", "normalisation", "size")


def check_preprocessing(examined: Examined) -> list[Check]:
    """Return one check each for channel order, normalisation and size, with p-values adjusted for all alternatives."""
    judged = judge(examined)
    return [_check(kind, examined, {v: gain for v, gain in judged.items() if v.kind == kind}) for kind in KINDS]


def judge(examined: Examined) -> dict[Variant, Gain]:
    """Compare the declared preprocessing with each variant that the network accepts."""
    others = [other for other in examined.correct if other not in examined.refused]
    if not others:
        return {}
    rows = examined.rows
    codes = cluster_codes([row["image_id"] for row in rows], [row["group"] for row in rows])
    declared = _numbers([row["correct"] for row in rows])
    columns = [_numbers(examined.correct[other]) for other in others]
    return dict(zip(others, gains(declared, columns, codes, examined.data.spec.seed), strict=True))


def _numbers(correct: list[bool | None]) -> np.ndarray:
    return np.array([np.nan if value is None else float(value) for value in correct])


def _check(kind: str, examined: Examined, judged: dict[Variant, Gain]) -> Check:
    values: dict[str, object] = {variant.name: gain.as_dict() for variant, gain in judged.items()}
    if refused := [variant.name for variant in examined.refused if variant.kind == kind]:
        values["refused"] = refused
    if not judged:
        if len(examined.rows) < ENOUGH:
            return Check(
                kind,
                "undecided",
                f"{len(examined.rows)} images are too few to compare alternatives",
                f"at least {ENOUGH} are needed",
                values,
            )
        if examined.model.question.members is None:
            return Check(kind, "undecided", "alternatives cannot be compared: no label is a class of the network")
        reason = "the network accepts no alternative" if refused else "there is no alternative to compare with"
        grey = kind == "channel order" and examined.grey
        reason = "the images are grey, so the order of channels does not matter" if grey else reason
        return Check(kind, "ok", reason, values=values)
    n = next(iter(judged.values())).n
    if n < ENOUGH:
        text = f"{n} labelled images are too few to compare alternatives"
        return Check(kind, "undecided", text, f"at least {ENOUGH} are needed", values)
    better = [(gain, variant) for variant, gain in judged.items() if gain.is_better]
    if better:
        gain, _ = max(better, key=lambda pair: pair[0].value)
        # Accuracy cannot distinguish equally good variants.
        equal = [variant for other, variant in better if other.value == gain.value]
        names, fixes = (" or ".join(texts) for texts in ([v.name for v in equal], [v.fix for v in equal]))
        return Check(kind, gain.mark, f"{names}: {gain}", fixes, values)
    gain, variant = max(((gain, variant) for variant, gain in judged.items()), key=lambda pair: pair[0].value)
    text = f"none of {len(judged)} alternatives is better; the best is {variant.name}, with {gain.value:.0%}"
    text = text.replace("none of 1 alternatives is better; the best is", "not better:")
    return Check(kind, "ok", f"{text} against {gain.declared:.0%} as declared (n = {n})", values=values)


def reconciled(
    order: Check, assignment: ClassAssignment | None, preprocessing: list[Check], accuracy: Mark
) -> list[Check]:
    """Return the checks. At most one of them is marked wrong.

    A wrong order of classes and wrong preprocessing can explain the same mistakes. The check whose alternative reaches
    the highest accuracy is marked wrong. The other checks cannot be judged until this cause is fixed. If the accuracy
    is at chance level and no alternative explains the mistakes, no check is marked ok.

    Args:
        order: Check of the order of classes.
        assignment: Assignment that explains the predictions better than the declared one, or None.
        preprocessing: Checks of the preprocessing.
        accuracy: Mark of the accuracy check.
    """
    wrong = [check for check in preprocessing if check.mark == "wrong"]
    best = max((_best(check) for check in wrong), default=0.0)
    first = next((check.name for check in wrong if _best(check) == best), "")
    fix = f"fix the {first} first, because this explains the predictions at least as well"
    preprocessing = [
        replace(check, mark="look", fix=fix) if check in wrong and check.name != first else check
        for check in preprocessing
    ]
    if assignment is not None and wrong and best >= assignment.gain.value:
        text = f"{order.text}; however, a different {first} explains the predictions at least as well"
        return [Check(order.name, "look", text, f"fix the {first} first", order.values), *preprocessing]
    if assignment is None and (accuracy == "ok" or wrong):
        return [order, *preprocessing]
    if assignment is None:
        fix = "" if accuracy == "undecided" else "first find out why the accuracy is no better than chance"
        return [replace(check, mark="undecided", fix=check.fix or fix) if check.mark == "ok" and check.values else check
                for check in (order, *preprocessing)]  # fmt: skip
    text, fix = "accuracy is unreliable while the classes are in the wrong order", "fix the order of the classes first"
    return [order, *(Check(check.name, "undecided", text, fix, check.values) for check in preprocessing)]


def _best(check: Check) -> float:
    """Return the accuracy of the best significant alternative in a check, or 0 if there is none."""
    return max((v["accuracy"] for v in check.values.values() if isinstance(v, dict) and v["p"] < ALPHA), default=0.0)
