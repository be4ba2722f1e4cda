"""Describe what an explainer needs and costs, from its declaration."""

from inspect import signature

from saliency_bench import options, registry
from saliency_bench.errors import UserError, described

SIDE = 224


def costs(name: str) -> str:
    """Describe what an explainer needs from a network, and how many forward passes it makes per image by default.

    The image has SIDE x SIDE pixels. Examples are "outputs; 4000" and, if the number depends on the network,
    "activations, outputs; 513 with channels=512". The string is empty unless the explainer declares both its needs and
    its number of passes.

    Raises:
        UserError: The explainer's function `passes` raised an error.
    """
    function = getattr(registry.load("explainers", name), name)
    declared = registry.declaration_of("explainers", name, function)
    if not declared.needs or declared.passes is None:
        return ""
    try:
        passes = declared.passes_of(options.defaults(function), SIDE, SIDE)
    except Exception as error:  # the function may be user code
        raise UserError(f"explainer {name}: passes raised {described(error)}") from error
    parameters = signature(declared.passes).parameters.items() if callable(declared.passes) else ()
    assumed = ", ".join(f"{key}={p.default}" for key, p in parameters if p.default is not p.empty)
    return f"{declared.needs}; {passes}" + (f" with {assumed}" if assumed else "")
