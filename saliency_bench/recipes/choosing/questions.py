"""The questions that `choose` answers, and the metrics for each question."""

from collections.abc import Sequence
from dataclasses import dataclass

from saliency_bench.bound_metric import Metric, as_metric, check_without_people
from saliency_bench.errors import UserError, unknown


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question, the metrics used to answer it, and the limits of the answer.

    Attributes:
        name: Name of the question in the command.
        about: Text that completes "the best for ...".
        metrics: Metrics, each of which is evaluated separately.
        silent: Description of what the answer does not show.
        complement: Name of the question that answers what `silent` describes, or "".
        masks: Whether the metrics need masks.
        baselines: Whether a method must beat the baselines. False if the baselines are best by design.
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
            "whether the network relies on what the map marks (the network may use regions that people do not use)",
            masks=True,
            complement="faithfulness",
        ),
        ChoiceQuestion(
            "faithfulness",
            "marking what the network relies on",
            ("saliency_insertion:steps=16", "saliency_deletion:steps=16"),
            "whether the map marks what people see as the object (checking this requires masks)",
            complement="alignment",
        ),
        ChoiceQuestion(
            "debugging",
            "finding the regions that matter to the network",
            ("saliency_single_deletion", "saliency_road"),
            "whether these regions are what people see as the object (checking this requires masks)",
            complement="alignment",
        ),
        ChoiceQuestion(
            "stability",
            "moving with the image",
            ("saliency_consistency",),
            "whether the map is correct (even a map that ignores the network can be perfectly stable)",
            baselines=False,
        ),
    )
}
GIVEN = "given metrics"


def questions_of(names: Sequence[str], metrics: Sequence[Metric], has_masks: bool) -> list[ChoiceQuestion]:
    """Return the questions to answer.

    Args:
        names: Names of questions, or () for faithfulness and, if the dataset has masks, alignment.
        metrics: Metrics that replace the questions' metrics.
        has_masks: Whether the dataset has masks.

    Raises:
        UserError: A question is unknown, both `names` and `metrics` are set, or a question needs masks that the dataset
            lacks.
    """
    if names and metrics:
        raise UserError("questions (--for) and metrics (--metrics) cannot be combined; use one of the two")
    if metrics:
        for metric in metrics:
            check_metric(metric)
        texts = tuple(map(str, metrics))
        return [ChoiceQuestion(GIVEN, "the given metrics", texts, "anything beyond what these metrics measure")]
    if not names:
        names = ("alignment", "faithfulness") if has_masks else ("faithfulness",)
    for name in names:
        if name not in QUESTIONS:
            raise unknown("question", name, QUESTIONS)
        if QUESTIONS[name].masks and not has_masks:
            raise UserError(
                f"--for {name} needs masks, but the dataset has none; use --for faithfulness, or draw masks with "
                "`saliency-bench annotate`"
            )
    return [QUESTIONS[name] for name in dict.fromkeys(names)]


def check_metric(metric: Metric) -> None:
    """Raise UserError if a metric cannot score samples one by one."""
    check_without_people(metric)
    reasons = {
        "has one value for all samples": metric.aggregate is not None,
        "trains networks": bool(metric.declaration.keeps),
        "compares samples with each other, so its scores depend on the number of samples": metric.declaration.plan
        is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"{metric} {reason}, but `choose` needs a score per sample; use a different metric")


def metrics_of(questions: Sequence[ChoiceQuestion]) -> list[str]:
    """Return the distinct metrics of the questions, under the names that a run uses."""
    return list(dict.fromkeys(str(as_metric(text)) for question in questions for text in question.metrics))
