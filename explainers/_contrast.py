"""The weighted contrast of Wang and Wang (2022): why this class and not the others, each as far as it is a rival.

    map = map of y_t - sum over s != t of a_s map of y_s        a = softmax over the other classes of their logits

For maps that are linear in the gradient of the score this is, up to a positive factor per image, the map of the
probability p_t, which the authors' code takes; no negative values are cut off. It is here for a group, too: t is then
any class with a positive weight in the target, and s the others. (Wang and Wang, "Why Not Other Classes?": Towards
Class-Contrastive Back-Propagation Explanations, NeurIPS 2022; Eriksson, Israelsson and Kallhauge, 2025, carry it over
to transformers.)
"""

import torch
from torch import Tensor

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.target_weights import BINARY, activation_of, expand, score
from saliency_bench.types import Images, Target


def explained_score(classifier: Classifier, images: Images, target: Target, on: str) -> Tensor:
    """Return (B,): the score of a target, whose gradient makes the map.

    With `on="weighted"` its gradient is that of p, the summed probability of the classes with a positive weight. It is
    computed as p (1 - p) times that of the log odds of p, because the gradient of a softmax is 0 where p rounds to 1.

    Raises:
        UserError: `on` is "weighted", and the classes do not exclude each other, or a target has no positive weight or
            no other class.
    """
    logits = classifier(images)
    if on != "weighted":
        return score(logits, target, on, classifier)
    activation = activation_of(classifier)
    if activation == "sigmoid":
        raise UserError(
            f"on=weighted compares probabilities of classes that exclude each other, and {classifier.id} has a sigmoid "
            "for each class; take on=logit"
        )
    chosen = expand(target, logits) > 0
    if not (chosen.any(dim=1) & ~chosen.all(dim=1)).all():
        raise UserError("on=weighted needs a target with a class of positive weight and with another class")
    inside, others = (logits.masked_fill(without, -torch.inf).logsumexp(dim=1) for without in (~chosen, chosen))
    odds = inside - others
    odds = odds / 2 if activation == BINARY else odds  # its logits are -z and z, and p is the sigmoid of z
    return odds * (odds.sigmoid() * (-odds).sigmoid()).detach()
