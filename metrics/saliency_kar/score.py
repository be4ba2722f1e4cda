"""Measure how well networks learn from pictures that keep only the top pixels of a map."""

import numpy as np

from saliency_bench.compute.scoring import retraining
from saliency_bench.compute.scoring.retraining import (
    Initial,
    Test,
    check_protocol,
    part_names,
    retrained_area,
    right_answers,
)
from saliency_bench.declarations import metric
from saliency_bench.metrics._papers import HOOKER_2019


@metric(
    version=2,
    title="Retrained on kept pixels (KAR)",
    higher_is_better=True,
    range=(0, 1),
    paper=HOOKER_2019,
    undefined="no map of the image",
    parts=part_names,
    absent="no map of the image",
    reduce=retrained_area,
    question=retraining.predicted,
    keeps="top",
    check=check_protocol,
)
def saliency_kar(
    retrained: np.ndarray,
    labels: np.ndarray,
    *,
    test: Test = "modified",
    trainings: int = 5,
    epochs: int = 30,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    images: int | None = None,
    initial: Initial = "new",
    exposures: list | tuple | None = None,
) -> np.ndarray:
    """Return whether networks trained on pictures that keep only a map's top share r are right about each image.

        score = integral of a(r) dr over [0, 1] by the trapezoid rule at r = 0, 5, 10, 15, 20, 30, 50, 75, 100 %

    The explainer explains the class that the run's classifier predicts, on every training, validation and test image
    (maps of the label would leak the label). All pixels except the top share r are replaced by the mean colour of the
    training images. For each r, networks of the classifier's architecture are trained with new weights by the same
    recipe: Adam, keeping the epoch that is best on the changed validation images. a(r) is the share of them that are
    right about the sample's label. A run also scores two controls for every explainer: `random`, and the explainer's
    maps under a strong Gaussian blur, because a less informative map often scores better (Brocki and Chung, 2023).

    Args:
        retrained: Int (B, P), the class that each network predicts for each image; -1 if missing. P is the number of
            exposures times the number of trainings.
        labels: Bool (B, K), the correct classes of each image.
        test: "modified": the test images are changed like the training images (Hooker et al., 2019). "clean": they
            are unchanged (Lu et al., Crowdsourcing Evaluation of Saliency-based XAI Methods, 2021).
        trainings: trainings per exposure, each with its own initial weights and order of the images, the same for all
            explainers.
        epochs: passes over the training images.
        learning_rate: step size of Adam.
        batch_size: images in one step.
        images: number of images to train on, drawn with the run's seed; None: all.
        initial: "new": weights are drawn anew. "base": weights of the checkpoint that the classifier was trained from,
            according to its `training_log.json`, except for the last layer, which is drawn anew.
        exposures: a subset of the exposures above, increasing, such as [0, 0.1, 0.5, 1], for fewer trainings; the area
            is divided by their width. None: all.

    Returns:
        (B, P): 1 if a network is right, else 0, the parts of the score; `reduce` gives the area, in [0, 1], higher
        is better.

    Raises:
        UserError: A training is impossible with these options.

    Example:
        One training per exposure, and its prediction for a 4 x 4 image of class 1:

            exposure   0   5 %   10 %   15 %   20 %   30 %   50 %   75 %   100 %
            answer     0   0     1      1      1      1      1      1      1
            right      0   0     1      1      1      1      1      1      1

            area = 0.05 * 1/2 + 0.9 * 1 = 0.925

        >>> answers = np.array([[0, 0, 1, 1, 1, 1, 1, 1, 1]])
        >>> labels = np.array([[False, True]])
        >>> right = saliency_kar(answers, labels, trainings=1)
        >>> retrained_area(right, {"trainings": 1}).round(6).tolist()
        [0.925]
    """
    check_protocol(
        trainings=trainings, epochs=epochs, learning_rate=learning_rate, batch_size=batch_size, images=images,
        exposures=exposures,
    )  # fmt: skip
    return right_answers(retrained, labels)
