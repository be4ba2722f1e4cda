"""Leave out explainers before a run if they do not work with the network, and print the reason for each."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from saliency_bench import registry
from saliency_bench.bound_explainer import Explainer, is_ours, load_explainer
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.targets.rules import TargetRule
from saliency_bench.errors import UserError, one_line
from saliency_bench.read.manifest import read_earlier
from saliency_bench.read.parts import RunStore
from saliency_bench.target_weights import one_hot
from saliency_bench.types import Images, Target
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

COUNTS = ("steps", "samples", "masks")  # options that control the amount of computation per map


def check_fits(explainer: Explainer, classifier: Classifier, images: Images, target: Target) -> None:
    """Check that a bundled explainer works with the network, by explaining one image as cheaply as possible.

    Raises:
        UserError: The explainer does not work with this network or with an option, such as a layer.
    """
    if explainer.declaration.needs in ("outputs", "nothing") or not is_ours(explainer.function):
        return
    if "outputs" in explainer.declaration.needs:  # one pass per channel; Grad-CAM reads the layer in one pass
        explainer = load_explainer("gradcam", layer=dict(explainer.options)["layer"])
    few = tuple((name, 2 if name in COUNTS and value is not None else value) for name, value in explainer.options)
    with torch.no_grad():
        replace(explainer, options=few)(classifier, images, target)


def check_contrast(rule: TargetRule, explainers: Iterable[Explainer]) -> None:
    """Raise UserError if the target is a contrast and an explainer already contrasts classes."""
    is_contrast = rule.name == "contrast:second" or any(terms.minus for terms in (rule.by_id or {}).values())
    weighted = next((item for item in explainers if item.ignores_against), None)
    if is_contrast and weighted is not None:
        raise UserError(
            f"{weighted} always contrasts a class with all others, not with the classes that --target {rule.name} "
            "names; use on=logit, or a target that is not a contrast"
        )


def misfits_of(explainers: Sequence[Explainer], store: RunStore, data: SplitTable, model: RunModel) -> dict[str, str]:
    """Return {name of an explainer that does not work with the network: reason}, and print a warning about each.

    Explainers that already have cells in the folder are not tested again. Call this function only from the main
    process.

    Raises:
        UserError: Only baselines work with the network, or the run is strict and an explainer does not work with it.
    """
    names = registry.names("explainers")
    asking = [item for item in explainers
              if item.name in names and item.declaration.needs not in ("outputs", "nothing")]  # fmt: skip
    if asking and (earlier := read_earlier(store.out)) is not None and earlier.identity == store.identity:
        fitted = {cell.explainer_id for cell in earlier.cells.values()}
        asking = [item for item in asking if hash_of(item.identity) not in fitted]
    image, predicted = _image(data, model.classifier) if asking else (None, None)
    if image is None or predicted is None:
        return {}
    misfits: dict[Explainer, str] = {}
    for explainer in asking:
        with suppress(Exception):  # an error that concerns one image only is recorded with the score of the image
            try:
                check_fits(explainer, model.classifier, image, predicted)
            except UserError as error:
                misfits[explainer] = one_line(error)
    if not misfits:
        return {}
    first, reason = next(iter(misfits.items()))
    fitting = [item for item in explainers if item not in misfits]
    if data.spec.strict or all(item.baseline for item in fitting):
        raise UserError(f"{first} does not support the network: {reason}")
    for explainer, reason in misfits.items():
        complain(f"{explainer} is left out, because it does not support the network: {reason}")
    return {str(item): reason for item, reason in misfits.items()}


def _image(data: SplitTable, classifier: Classifier) -> tuple[Images | None, Target | None]:
    """Return the first image in the first batch that can be classified, and its predicted class as the target."""
    for position in range(min(data.count, data.spec.batch_size)):
        with suppress(Exception), torch.no_grad():  # damaged files, or a network that rejects some images
            row = data.samples.rows[position]
            images = classifier.prepare([row], mask_values=data.spec.mask_values).images
            logits = classifier(images.to(classifier.device))
            if logits.isfinite().all():
                return images.to(logits.device), one_hot(logits.argmax(dim=1), logits.shape[1]).to(logits)
    return None, None
