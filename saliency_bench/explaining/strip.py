"""Several explanations of one picture side by side, each with its words below."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.displays import strip
from saliency_bench.explaining.explanation import Explanation, explain


def explain_many(
    picture: str | Path, classifier: Classifier, explainers: Sequence[str], target: str | None = None
) -> tuple[list[Explanation], Image.Image]:
    """(an explanation by each explainer, or by one that fits the network if none is named; the strip of them).

    The strip begins with the picture as the network sees it. Raises: UserError of `explain`.
    """
    seen = [explain(picture, classifier, name, target=target) for name in (*explainers, *[None] * (not explainers))]
    first = seen[0].picture, [Path(picture).name, "as the network sees it"]
    return seen, strip([first, *((one.overlay, one.caption) for one in seen)])
