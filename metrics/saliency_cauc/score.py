"""Measure how long class A stays ahead of class B as a map's salient pixels are removed."""

import numpy as np

from saliency_bench.compute.scoring.contrastive import (
    Rival,
    Salient,
    check_deletion,
    delete_salient,
    score_range,
    without_groups,
)
from saliency_bench.compute.scoring.perturbation import Curves, Reference
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import XIE_2023


@metric(
    version=4,
    title="Contrast kept (CAUC)",
    higher_is_better=False,
    range=score_range,
    paper=XIE_2023,
    undefined="the group of the explained class contains no other class",
    passes=lambda options, height, width: (height * width // options["step"] + 2, 0),
    left_out=without_groups,
    check=check_deletion,
)
def saliency_cauc(
    curves: Curves,
    groups: ClassGroups | None = None,
    *,
    step: int = 16,
    threshold: float = 0.5,
    salient: Salient = "range",
    reference: Reference = "mean",
    rival: Rival = "any",
) -> np.ndarray:
    """Return the contrastive AUC: the area under the contrastive score s as the salient pixels are removed.

        CAUC = trapezoid sum of s_0 ... s_(m-1) / (ceil(H W / step) + 1),    m = max(1, ceil(n / step))

    n is the number of salient pixels. The divisor is the number of points that the curve would have if the whole image
    were removed, as in the published code.

    The contrastive score is s = p_A (1 - p_B), with softmax probabilities. A is the set of classes with a positive
    target weight, and B is the set of classes with a negative weight. If no weight is negative, B is the class other
    than A that is most probable for the whole image; with rival="group", only classes in A's group are considered.

    Caveat: only salient pixels are deleted, so a map with fewer salient pixels gets a smaller (better) score. A map
    with a few spikes looks perfect wherever its spikes are. Compare maps with similar numbers of salient pixels, or use
    a metric that deletes the same fraction of pixels for every map (saliency_deletion).

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        groups: Groups of the classifier's classes, required for rival="group".
        step: Number of pixels removed per step. The area uses every point of the path, so each sample needs one forward
            pass per step of the longest path in its batch: at most H W / step (3,136 for 224 x 224 pixels).
        threshold: Fraction of the map's range (salient="range") or of its maximum ("maximum") above which pixels are
            salient.
        salient: Rule that selects the salient pixels. "range": pixels above min + threshold (max - min), as in the
            published code. "maximum": pixels of at least threshold * max, as in the paper; there are none if max <= 0.
        reference: Values that replace the removed pixels. "black": 0, for images in [0, 1]. "mean": the classifier's
            normalisation mean, which is zero after normalisation. "blur": the image blurred by a Gaussian of 11 x 11
            pixels with sigma 5. "noise": uniform noise in [0, 1). "inpaint": values filled in from the kept pixels.
            "linear": linear imputation from the kept pixels (ROAD). "farthest": 0 or 1, whichever is farther from the
            pixel's value. "gaussian": normal noise around the pixel's value, truncated to [0, 1]. "farthest" and
            "gaussian" are from Sturmfels et al. (2020).
        rival: Class B for a target without negative weights. "any": the most probable other class, as in the published
            code. "group": the most probable other class of A's group (Elisha et al., 2025, 5.3).

    Returns:
        Scores in [0, 1], float64 (B,); lower is better. The score is 0 if at most `step` pixels are salient, as in a
        constant map. It is NaN if rival="group" and A's group has no other class.

    Raises:
        UserError: An option is out of range.

    Example:
        Take a 4 x 4 image and a classifier whose p_A is the fraction of white pixels among the four in the upper left
        corner, with p_B = 1 - p_A. The image is white, and the map ranks the pixels row by row from 16 to 1. The 8
        pixels above 8.5 are salient. With step=2, the path has 4 points; it would have 9 if the whole image were
        removed:

            pixels gone     0   2     4     6
            p_A             1   1/2   1/2   0
            s = p_A^2       1   1/4   1/4   0      CAUC = (1/2 + 1/4 + 1/4 + 0) / 9 = 1/9

        >>> import torch
        >>> class Corner(torch.nn.Module):
        ...     def forward(self, images):
        ...         white = images[:, :, :2, :2].mean((1, 2, 3))
        ...         return torch.stack([1 - white, white], 1).log()
        >>> maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
        >>> curves = Curves(Corner(), torch.ones(1, 3, 4, 4), torch.tensor([[0.0, 1.0]]), maps)
        >>> saliency_cauc(curves, step=2, reference="black").round(4).tolist()
        [0.1111]
    """
    check_deletion(step=step, threshold=threshold, salient=salient)
    path = delete_salient(curves, groups, step=step, threshold=threshold, salient=salient, reference=reference)
    scores = path.scores([np.arange(points) for points in path.points])
    areas = np.array([curve.sum() - (curve[0] + curve[-1]) / 2 for curve in scores]) / (path.steps + 1)
    return np.where(path.lacks_rival, np.nan, areas)
