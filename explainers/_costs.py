"""What an explainer costs, as far as its module says so without a network."""

from inspect import signature

from saliency_bench import options, registry

SIDE = 224


def costs(name: str) -> str:
    """Return what an explainer needs of a network, and its forward passes for one image with default options.

    "outputs; 4000", or "activations, outputs; 513 with channels=512" where the number depends on the network. The image
    has SIDE x SIDE pixels. Empty for an explainer whose module does not say both.
    """
    module = registry.load("explainers", name)
    if not hasattr(module, "NEEDS") or not hasattr(module, "passes"):
        return ""
    passes = module.passes(options.defaults(getattr(module, name)), SIDE, SIDE)
    parameters = signature(module.passes).parameters.items()
    assumed = ", ".join(f"{key}={p.default}" for key, p in parameters if p.default is not p.empty)
    return f"{module.NEEDS}; {passes}" + (f" with {assumed}" if assumed else "")
