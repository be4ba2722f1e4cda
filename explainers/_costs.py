"""What an explainer costs, as far as its module says so without a network."""

from inspect import signature

from saliency_bench import options, registry

SIDE = 224


def costs(name: str) -> str:
    """What it needs of a network; its forward passes for an image of SIDE x SIDE with default options.

    "outputs; 4000", or "activations, outputs; 513 with channels=512" where the number depends on the network. Empty for
    an explainer whose module does not say both.
    """
    module = registry.load("explainers", name)
    if not hasattr(module, "NEEDS") or not hasattr(module, "passes"):
        return ""
    passes = module.passes(options.defaults(getattr(module, name)), SIDE, SIDE)
    parameters = signature(module.passes).parameters.items()
    assumed = ", ".join(f"{key}={p.default}" for key, p in parameters if p.default is not p.empty)
    return f"{module.NEEDS}; {passes}" + (f" with {assumed}" if assumed else "")
