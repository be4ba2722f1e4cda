"""Show several explanations of one image in a grid: one column per explainer and one row per target."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.maps.explanation import Explanation, explain
from saliency_bench.notebook_views import stacked, strip


def explain_many(
    picture: str | Path,
    classifier: Classifier,
    explainers: Sequence[str],
    wanted: Sequence[str] = (),
    against: Sequence[str] = (),
    groups: Any = None,
) -> tuple[list[Explanation], Image.Image]:
    """Explain an image with several explainers. Return the explanations, and one picture that shows all of them.

    If `explainers` is empty, an explainer that supports the network is chosen. Each row of the picture starts with the
    prepared image.

    Args:
        picture: Image file.
        classifier: The network.
        explainers: Names of explainers.
        wanted: Classes or groups; () for the predicted class. The picture has a row for each class or group alone,
            followed by rows that contrast it with each entry of `against`.
        against: Classes or groups.
        groups: Groups of classes, as for `explain`.

    Raises:
        UserError: As for `explain`.
    """
    targets: Sequence[str | None] = wanted or [None]
    questions = [
        (target, other) for target in targets for other in (None, *(name for name in against if name != target))
    ]
    rows = [
        [
            explain(picture, classifier, name, target=target, against=other, groups=groups)
            for name in (*explainers, *[None] * (not explainers))
        ]
        for target, other in questions
    ]
    first = rows[0][0].picture, [Path(picture).name, "as the network sees it"]
    drawn = stacked([strip([first, *((entry.overlay, entry.caption) for entry in row)]) for row in rows])
    return [entry for row in rows for entry in row], drawn
