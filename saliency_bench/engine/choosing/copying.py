"""Settings to copy: the recommended explainer in a line of Python, here and where another package has it too."""

from string import Formatter

from saliency_bench import options, registry
from saliency_bench.bound_explainer import Explainer


def load_call(explainer: Explainer) -> str:
    """Return the call of `load_explainer` that gives an explainer; of your own function its name."""
    if not registry.is_named(explainer.version):
        return f"explainer = {explainer.name}"
    usual = options.defaults(explainer.function)
    chosen = [f", {name}={value!r}" for name, value in explainer.options if value != usual.get(name)]
    return f'explainer = sb.load_explainer("{explainer.name}"{"".join(chosen)})'


def elsewhere(explainer: Explainer, layer: str) -> dict[str, str]:
    """Return {package: the line that gives the same maps there}, as its declaration says.

    Left out is a line that cannot say an option which differs from its default.

    Args:
        explainer: with its options.
        layer: that Grad-CAM reads, "" if there is none.
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
