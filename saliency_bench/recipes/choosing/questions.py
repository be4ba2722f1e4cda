"""The questions that `choose` answers, and the metrics that decide each of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from saliency_bench.bound_metric import Metric, as_metric, check_without_people
from saliency_bench.errors import UserError, unknown


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question, the metrics that decide it, and what its answer cannot tell.

    Attributes:
        name: as the command spells it.
        about: completes "the best for ...".
        metrics: each decides for itself.
        silent: what the answer does not say.
        complement: the question that says it, if there is one.
        masks: whether the metrics need masks.
        baselines: whether a method must beat the baselines, which it need not where they score best by design.
    """

    name: str
    about: str
    metrics: tuple[str, ...]
    silent: str
    masks: bool = False
    baselines: bool = True
    complement: str = ""


QUESTIONS = {
    question.name: question
    for question in (
        ChoiceQuestion(
            "alignment",
            "pointing at the object",
            ("saliency_average_precision", "saliency_pointing_game"),
            "whether the network relies on what the map marks: it may look elsewhere than people do",
            masks=True,
            complement="faithfulness",
        ),
        ChoiceQuestion(
            "faithfulness",
            "marking what the network relies on",
            ("saliency_insertion:steps=16", "saliency_deletion:steps=16"),
            "whether the map marks what people see as the object: that needs masks",
            complement="alignment",
        ),
        ChoiceQuestion(
            "debugging",
            "finding the regions that matter to the network",
            ("saliency_single_deletion", "saliency_road"),
            "whether these regions are what people see as the object: that needs masks",
            complement="alignment",
        ),
        ChoiceQuestion(
            "stability",
            "moving with the image",
            ("saliency_consistency",),
            "whether the map is right: one that ignores the network is perfectly stable",
            baselines=False,
        ),
    )
}
GIVEN = "given metrics"


def questions_of(names: Sequence[str], metrics: Sequence[Metric], has_masks: bool) -> list[ChoiceQuestion]:
    """Return the questions to answer.

    Args:
        names: names of questions; () for those that the dataset allows: alignment, where there are masks, and faithfulness.
        metrics: metrics in the place of those of the questions, each a question of its own if there are several.
        has_masks: whether the dataset has any.

    Raises:
        UserError: A question is unknown, both are given, or a question needs masks.
    """
    if names and metrics:
        raise UserError("give either questions (--for) or metrics (--metrics), not both")
    if metrics:
        for metric in metrics:
            check_metric(metric)
        texts = tuple(map(str, metrics))
        return [
            ChoiceQuestion(GIVEN, "the metrics that were given", texts, "anything that these metrics do not measure")
        ]
    if not names:
        names = ("alignment", "faithfulness") if has_masks else ("faithfulness",)
    for name in names:
        if name not in QUESTIONS:
            raise unknown("question", name, QUESTIONS)
        if QUESTIONS[name].masks and not has_masks:
            raise UserError(
                f"--for {name} needs masks, and the dataset has none; take --for faithfulness, or draw masks with "
                "`saliency-bench annotate`"
            )
    return [QUESTIONS[name] for name in dict.fromkeys(names)]


def check_metric(metric: Metric) -> None:
    """Raise UserError for a metric whose samples cannot be looked at one after the other."""
    check_without_people(metric)
    reasons = {
        "is one value over all samples": metric.aggregate is not None,
        "trains networks": bool(metric.declaration.keeps),
        "compares samples with each other, so that its scores change with their number": metric.declaration.plan
        is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"{metric} {reason}; choose needs scores of single samples: take another metric")


def metrics_of(questions: Sequence[ChoiceQuestion]) -> list[str]:
    """Return the metrics of the questions as a run names them, each once."""
    return list(dict.fromkeys(str(as_metric(text)) for question in questions for text in question.metrics))
