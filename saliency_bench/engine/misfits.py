"""Leave explainers that do not fit the network out of a run before it starts, and report each with the reason."""

from contextlib import suppress
from dataclasses import replace

import torch

from saliency_bench import registry
from saliency_bench.bound_explainer import Explainer, is_ours, load_explainer
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.engine.context import RunContext
from saliency_bench.errors import UserError, one_line
from saliency_bench.target_weights import one_hot
from saliency_bench.types import Images, Target
from saliency_bench.utils.messages import complain

COUNTS = ("steps", "samples", "masks")  # options that set how much is spent on a map


def check_fits(explainer: Explainer, classifier: Classifier, images: Images, target: Target) -> None:
    """Check that an explainer of the package fits the network, by explaining an image as cheaply as possible.

    Raises:
        UserError: The network or an option, such as a layer, does not fit.
    """
    if explainer.declaration.needs in ("outputs", "nothing") or not is_ours(explainer.function):
        return
    if "outputs" in explainer.declaration.needs:  # one pass per channel; Grad-CAM reads the layer in one pass
        explainer = load_explainer("gradcam", layer=dict(explainer.options)["layer"])
    few = tuple((name, 2 if name in COUNTS and value is not None else value) for name, value in explainer.options)
    with torch.no_grad():
        replace(explainer, options=few)(classifier, images, target)


def check_contrast(context: RunContext) -> None:
    """Raise UserError if the target is a contrast and an explainer has a contrast of its own."""
    rule = context.question.rule
    is_contrast = rule.name == "contrast:second" or any(terms.minus for terms in (rule.by_id or {}).values())
    weighted = next((item for item in context.explainers if item.ignores_against), None)
    if is_contrast and weighted is not None:
        raise UserError(
            f"{weighted} explains a class against all others, not against the classes that --target {rule.name} names; "
            "use on=logit, or a target that is not a contrast"
        )


def without_misfits(context: RunContext) -> RunContext:
    """Return the run without explainers that do not fit the network, and print a warning about each of these.

    Raises:
        UserError: No explainer except baselines fits, or one does not and the run is strict; or see `check_contrast`.
    """
    check_contrast(context)
    names = registry.names("explainers")
    asking = [item for item in context.explainers
              if item.name in names and item.declaration.needs not in ("outputs", "nothing")]  # fmt: skip
    image = _image(context) if asking else None
    if image is None:
        return context
    with torch.no_grad():
        logits = context.classifier(image)
    predicted = one_hot(logits.argmax(dim=1), logits.shape[1]).to(image)
    misfits: dict[Explainer, str] = {}
    for explainer in asking:
        with suppress(Exception):  # errors that concern one image only are recorded with its score
            try:
                check_fits(explainer, context.classifier, image, predicted)
            except UserError as error:
                misfits[explainer] = one_line(error)
    if not misfits:
        return context
    first, reason = next(iter(misfits.items()))
    fitting = [item for item in context.explainers if item not in misfits]
    if context.spec.strict or not any(not item.baseline for item in fitting):
        raise UserError(f"{first} does not fit the network: {reason}")
    for explainer, reason in misfits.items():
        complain(f"{explainer} is left out, as it does not fit the network: {reason}")
    return replace(context, explainers=fitting, misfits={str(item): reason for item, reason in misfits.items()})


def _image(context: RunContext) -> Images | None:
    """Return the first image of the first chunk that the network can answer, (1, 3, H, W); None if there is none."""
    batch = context.chunk(0).batch if context.data.count else None
    for image in () if batch is None else batch.images.split(1):
        with suppress(Exception), torch.no_grad():  # a network may raise anything, for some images only
            if context.classifier(image).isfinite().all():
                return image
    return None
