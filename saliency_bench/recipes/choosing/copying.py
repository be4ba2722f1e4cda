"""Python code that users can copy, for the recommended explainer in this package and in other packages."""

from collections.abc import Sequence
from string import Formatter

from saliency_bench import options, registry
from saliency_bench.bound_explainer import Explainer
from saliency_bench.spec import RunSpec

IMPORTS = {
    "captum": "import captum.attr",
    "pytorch-grad-cam": "from pytorch_grad_cam import {name}\n"
    "from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget",
}
NORMALISED = "model, x = classifier.taking_normalised(), classifier.normalised(images).requires_grad_()"


def load_call(explainer: Explainer) -> str:
    """Return code that loads an explainer with `load_explainer`. For a user-defined function, return its name."""
    if not registry.is_named(explainer.version):
        return f"explainer = {explainer.name}"
    usual = options.defaults(explainer.function)
    chosen = [f", {name}={value!r}" for name, value in explainer.options if value != usual.get(name)]
    return f'explainer = sb.load_explainer("{explainer.name}"{"".join(chosen)})'


def setup(spec: RunSpec, labels: Sequence[str] | None = None) -> str:
    """Return code that defines the network, the image and the class that `load_call` needs.

    If the settings contain Python objects, return a comment that lists the variables to define.

    Args:
        spec: The settings.
        labels: Class names of the network. They are inserted into prompt templates.
    """
    if spec.needs_python:
        return "# define classifier, images (1, 3, H, W), target (1, K) and label as in your program"
    texts = ""
    if isinstance(spec.prompts, tuple):
        texts = f", prompts={list(spec.prompts)}" + f", labels={labels}" * ("{}" in spec.prompts[0])
    return "\n".join([
        f'classifier = sb.load_classifier("{spec.model}"{texts})',
        f'images = classifier.prepare([sb.load_dataset("{spec.dataset}", split="{spec.split}")[0]]).images',
        "logits = classifier(images)",
        "label = int(logits.argmax())",
        "target = sb.targets.one_hot(label, logits.shape[1])",
    ])  # fmt: skip


def with_imports(package: str, line: str) -> str:
    """Return a line from `elsewhere`, preceded by imports and by the definitions of network and image."""
    return "\n".join([IMPORTS[package].format(name=line.partition("(")[0]), "", NORMALISED, f"maps = {line}"])


def elsewhere(explainer: Explainer, layer: str) -> dict[str, str]:
    """Return {package: line of code that computes the same maps with that package}, from the explainer's declaration.

    If an option was changed from its default and a line cannot express this, the line is left out.

    Args:
        explainer: Explainer with its options.
        layer: Layer that Grad-CAM uses, or "".
    """
    lines = dict(explainer.declaration.elsewhere)
    values, usual = dict(explainer.options), options.defaults(explainer.function)
    differing = {name for name, value in values.items() if value != usual.get(name)}
    if "layer" in values:
        values["layer"] = values["layer"] or layer
    return {
        package: line.format(**values)
        for package, line in lines.items()
        if differing <= {name for _, name, _, _ in Formatter().parse(line) if name}
    }
