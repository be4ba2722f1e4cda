"""Several explanations of one picture: the explainers side by side, a row for each question."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.displays import stacked, strip
from saliency_bench.map_sources.explanation import Explanation, explain


def explain_many(
    picture: str | Path,
    classifier: Classifier,
    explainers: Sequence[str],
    asked: Sequence[str] = (),
    against: Sequence[str] = (),
    groups: Any = None,
) -> tuple[list[Explanation], Image.Image]:
    """(an explanation by each explainer, or by one that fits the network if none is named; the picture of them).

    asked: classes or groups, the predicted class by default; the picture has a row for each of them by itself, then for
    it against each of `against`. groups: as of `explain`. A row begins with the picture as the network sees it.
    Raises: UserError of `explain`.
    """
    targets: Sequence[str | None] = asked or [None]
    questions = [(one, other) for one in targets for other in (None, *(name for name in against if name != one))]
    rows = [
        [
            explain(picture, classifier, name, target=target, against=other, groups=groups)
            for name in (*explainers, *[None] * (not explainers))
        ]
        for target, other in questions
    ]
    first = rows[0][0].picture, [Path(picture).name, "as the network sees it"]
    drawn = stacked([strip([first, *((one.overlay, one.caption) for one in row)]) for row in rows])
    return [one for row in rows for one in row], drawn
