"""Check the cost that an explainer declares."""

from inspect import signature

from saliency_bench import options, registry
from saliency_bench.errors import UserError, described

SIDE = 224


def costs(name: str) -> str:
    """Return an explainer's requirements on a network, and its forward passes for one image with default options.

    "outputs; 4000", or "activations, outputs; 513 with channels=512" where the number depends on the network. The image
    has SIDE x SIDE pixels. Empty for an explainer that does not declare both.
    """
    function = getattr(registry.load("explainers", name), name)
    declared = registry.declaration_of("explainers", name, function)
    if not declared.needs or declared.passes is None:
        return ""
    try:
        passes = declared.passes_of(options.defaults(function), SIDE, SIDE)
    except Exception as error:  # of the author's function
        raise UserError(f"explainer {name}: passes raised {described(error)}") from error
    parameters = signature(declared.passes).parameters.items() if callable(declared.passes) else ()
    assumed = ", ".join(f"{key}={p.default}" for key, p in parameters if p.default is not p.empty)
    return f"{declared.needs}; {passes}" + (f" with {assumed}" if assumed else "")
