"""Weighted contrast (Wang and Wang, 2022): evidence for a class against all others, weighted by their probabilities.

    map = map of y_t - sum over s != t of a_s map of y_s        a = softmax of the logits of the other classes

For maps that are linear in the gradient of the score, this equals the map of the probability p_t up to a positive
factor per image. The authors' code computes the map of p_t. Negative values are kept. Groups are supported as well: t
then stands for the classes with a positive weight in the target, and s for all other classes. The paper is Wang and
Wang, "Why Not Other Classes?": Towards Class-Contrastive Back-Propagation Explanations, NeurIPS 2022. Eriksson,
Israelsson and Kallhauge (2025) extend the method to transformers.
"""

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.target_weights import BINARY, activation_of, expand, score
from saliency_bench.types import Images, Target


def explained_score(classifier: Classifier, images: Images, target: Target, on: str) -> Tensor:
    """Return the score, of shape (B,), whose gradient determines the map.

    With `on="weighted"`, the gradient of the score equals the gradient of p, the summed probability of the classes with
    a positive weight. It is computed as p (1 - p) times the gradient of the log odds of p, because the gradient of a
    softmax is 0 if p rounds to 1.

    Raises:
        UserError: `on` is "weighted", and either the classes are not mutually exclusive, or a target gives a positive
            weight to no class or to every class.
    """
    logits = classifier(images)
    if on != "weighted":
        return score(logits, target, on, classifier)
    activation = activation_of(classifier)
    if activation == "sigmoid":
        raise UserError(
            f"on=weighted needs mutually exclusive classes, but {classifier.id} has a sigmoid for each class; "
            "use on=logit"
        )
    chosen = expand(target, logits) > 0
    if not (chosen.any(dim=1) & ~chosen.all(dim=1)).all():
        raise UserError(
            "on=weighted needs a target in which at least one class has a positive weight and at least one does not; "
            "use on=logit"
        )
    inside, others = (logits.masked_fill(without, -torch.inf).logsumexp(dim=1) for without in (~chosen, chosen))
    odds = inside - others
    odds = odds / 2 if activation == BINARY else odds  # the logits are -z and z, and p is the sigmoid of z
    return odds * (odds.sigmoid() * (-odds).sigmoid()).detach()
