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
    undefined="there is no map for this image",
    parts=part_names,
    absent="there is no map for this image",
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
    """Return whether each image is classified correctly by networks trained on a map's top fraction r of each picture.

        score = integral of a(r) dr over [0, 1] by the trapezoid rule at r = 0, 5, 10, 15, 20, 30, 50, 75, 100 %

    For every training, validation and test image, the explainer explains the class that the run's classifier predicts
    (maps for the label would leak the label). All pixels except the top fraction r are replaced by the mean colour of
    the training images. For each r, networks with the classifier's architecture are trained from new weights with the
    same procedure: Adam, keeping the weights of the epoch that is best on the changed validation images. a(r) is the
    fraction of these networks that predict the sample's label. A run also scores two controls for every explainer:
    `random`, and the explainer's maps after a strong Gaussian blur. The controls are needed because a less informative
    map often scores better (Brocki and Chung, 2023).

    Args:
        retrained: Class that each network predicts for each image, int (B, P); -1 if missing. P is the number of
            exposures times `trainings`.
        labels: Correct classes of each image, bool (B, K).
        test: Test images. "modified": changed in the same way as the training images (Hooker et al., 2019). "clean":
            unchanged (Lu et al., Crowdsourcing Evaluation of Saliency-based XAI Methods, 2021).
        trainings: Number of networks that are trained per exposure. Each network has different initial weights and sees
            the images in a different order; weights and orders are the same for all explainers.
        epochs: Number of passes over the training images.
        learning_rate: Step size of Adam.
        batch_size: Number of images per training step.
        images: Number of training images, drawn with the run's seed. None: all images.
        initial: Initial weights. "new": random weights. "base": weights of the checkpoint from which the classifier was
            trained, according to its `training_log.json`, with a random last layer.
        exposures: Increasing subset of the exposures above, such as [0, 0.1, 0.5, 1], to train fewer networks. The area
            is divided by the range of the subset. None: all exposures.

    Returns:
        Parts of the score, of shape (B, P): 1 if a network is right and 0 otherwise. `reduce` computes the area, in [0,
        1]; higher is better.

    Raises:
        UserError: Training is impossible with these options.

    Example:
        Predictions for a 4 x 4 image of class 1, with one network per exposure:

            exposure   0   5 %   10 %   15 %   20 %   30 %   50 %   75 %   100 %
            predicted  0   0     1      1      1      1      1      1      1
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
