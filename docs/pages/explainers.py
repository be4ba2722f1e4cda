"""Generator of the page of explainers: their docstrings, and their maps for a photograph and a drawing.

The maps of the photograph need the packages of the extra `demo`. The maps of the drawing need shapes-xai and two small
networks that are trained on it, which takes up to an hour on two cores.
"""

import ast
import re
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saliency_bench import options, registry, targets
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.training import train
from saliency_bench.data.building import build
from saliency_bench.data.loading import load_dataset
from saliency_bench.errors import UserError
from saliency_bench.explainers._costs import costs
from saliency_bench.types import Batch, Images, Target
from saliency_bench.utils.files import write_text, write_with

SIZE, COUNT, EPOCHS = 64, 6144, 12
COLUMNS = 6
TRIED = 10
PHOTOGRAPH = "coffee"
ABOUT_PHOTOGRAPH = """\
![maps of a photograph](maps_photograph.png)

A photograph by Rachel Michetti (CC0) and maps of all explainers, with default options, for the top class of
EfficientNet-Lite0: {answer}. It is unknown which pixels of a photograph a network uses. The cup is outlined."""
ABOUT_PICTURES = """\
The other pictures show maps of a test image of shapes-xai for its class, with default options. In this dataset, the
class depends only on the object. Among the images that the network classifies correctly and for which no map is
constant, the image with the object farthest from the middle was chosen. (The map of gradcam_vit may be zero everywhere,
because negative values are set to 0.) The object is outlined. In all pictures, signed maps are blue below zero and red
above zero, on a scale that is symmetric around zero. Other maps range from their smallest value (dark) to their largest
value (bright). Each map has its own scale."""


def write(folder: Path, models: Path | None) -> None:
    """Write `explainers.md` into a folder, with pictures of maps if a folder for networks is passed."""
    shown, left_out = [], dict.fromkeys(registry.names("explainers"), "")
    if models is not None:
        shown = [with_photograph(list(left_out), models, folder), ABOUT_PICTURES]
        for network, config in (("ResNet", resnet()), ("ViT", vit())):
            if left_out:
                classifier = trained(models, network, config)
                shown, left_out = with_picture(shown, left_out, network, classifier, models, folder)
    write_text(folder / "explainers.md", page(shown, left_out if models is not None else {}))


def with_photograph(names: list[str], models: Path, folder: Path) -> str:
    """Draw the maps of all supported explainers for a photograph and a real network, and return their description."""
    classifier = load_classifier(write_efficientnet_lite(models / "lite0"), device="cpu")
    rows = [row for row in load_dataset("photos-xai", split="test") if row["image_id"] == PHOTOGRAPH]
    batch = classifier.prepare(rows)
    with torch.no_grad():
        logits = classifier(batch.images)
    answer = int(logits.argmax())
    maps, _ = maps_of(classifier, batch.images, targets.one_hot([answer], logits.shape[1]), names)
    picture = partial(draw, image=batch.images[0], mask=batch.masks[0], maps=maps)
    write_with(folder / "maps_photograph.png", picture)
    return ABOUT_PHOTOGRAPH.format(answer=(classifier.labels or [])[answer])


def with_picture(
    shown: list[str], left_out: dict[str, str], network: str, classifier: Classifier, models: Path, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Return (page with the maps of a network, {explainer that does not support the network: reason})."""
    batch = classifier.prepare(load_dataset(str(models / "shapes-xai"), split="test"))
    with torch.no_grad():
        probabilities = classifier(batch.images).softmax(dim=1)
    right = probabilities.argmax(dim=1) == batch.labels
    sure = right & (probabilities.amax(dim=1) > 0.9)
    for index in telling(batch, sure if sure.any() else right)[:TRIED]:
        image, label = batch.images[index : index + 1], int(batch.labels[index])
        maps, reasons = maps_of(classifier, image, targets.one_hot([label], probabilities.shape[1]), list(left_out))
        if all(values.min() < values.max() for values in maps.values()):
            break
    if not maps:
        return shown, reasons
    file = f"maps_{network.lower()}.png"
    write_with(folder / file, partial(draw, image=image[0], mask=batch.masks[index], maps=maps))
    weights = sum(map(torch.numel, classifier.parameters()))
    seen = (classifier.labels or [])[label], float(probabilities[index, label])
    text = f"""![maps of every explainer for one image]({file})

{network} with {weights:,} weights, trained for {EPOCHS} epochs on {COUNT:,} drawings of {SIZE} x {SIZE} pixels. The
test accuracy is {float(right.double().mean()):.1%}. The image shows a {seen[0]}, which the network predicts with a
probability of {seen[1]:.3f}.

Explainers in the picture: {", ".join(maps)}."""
    return [*shown, text], reasons


def page(shown: list[str], left_out: dict[str, str]) -> str:
    """Return the text of the page."""
    reasons = [f"- {name}: {reason}" for name, reason in left_out.items()]
    parts = [*shown, "Explainers without a picture:\n\n" + "\n".join(reasons)] if reasons else shown
    return "\n\n".join([*parts, *map(section, registry.names("explainers"))]) + "\n"


def section(name: str) -> str:
    """Return the docstrings of an explainer's module and function, its options and its cost as Markdown."""
    tree = ast.parse(registry.files("explainers")[name].read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    loaded = getattr(registry.load("explainers", name), name)
    docstring, defaults = ast.get_docstring(function) or "", options.defaults(loaded)
    meanings = options.meanings(docstring)
    lines = [f"- {spelled(loaded, *option)}: {meanings.get(option[0], '')}" for option in defaults.items()]
    listed = "\n".join(textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False) for line in lines)
    needs, _, passes = costs(name).partition("; ")
    return "\n\n".join([f"## {name}", ast.get_docstring(tree) or "", *prose(docstring),
                        f"Options:\n\n{listed}" if listed else "Options: none",
                        f"Needs: {needs}; forward passes: {passes}"])  # fmt: skip


def prose(docstring: str) -> list[str]:
    """Return the paragraphs of a Google docstring without the summary and arguments. "Raises:" becomes a sentence."""
    paragraphs = [part for part in docstring.split("\n\n")[1:] if not part.startswith("Args:\n")]
    joined = [re.sub("\n +", "\n", part).replace("Returns:\n", "Returns: ") for part in paragraphs]
    return [re.sub(r"^Raises:\n", "Raises ", part) for part in joined]


def spelled(function: Callable, key: str, value: object) -> str:
    """Return an option with its default and its other choices."""
    others = [f"`{choice}`" for choice in options.choices(function, key) if choice != value]
    return f"`{key}={value!r}`" + (f" (or {', '.join(others)})" if others else "")


def resnet():
    """Return the configuration of a small ResNet."""
    from transformers import ResNetConfig

    return ResNetConfig(embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2], layer_type="basic")


def vit():
    """Return the configuration of a small vision transformer."""
    from transformers import ViTConfig

    # Such a small network does not learn with the default range of initial weights.
    return ViTConfig(image_size=SIZE, patch_size=8, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                     intermediate_size=128, initializer_range=0.1)  # fmt: skip


def trained(folder: Path, network: str, config) -> Classifier:
    """Return a network trained on shapes-xai, or load the network if the folder contains it."""
    dataset, model = folder / "shapes-xai", folder / network
    if not dataset.exists():
        build("shapes-xai", dataset, size=SIZE, count=COUNT)
    if not model.exists():
        train(dataset=str(dataset), model=config, out=model, epochs=EPOCHS, size=SIZE)
    return load_classifier(model, device="cpu")


def telling(batch: Batch, right: Tensor) -> list[int]:
    """Return correctly classified samples whose object is not cut off, farthest from the middle first."""
    rows, columns = (torch.linspace(-1, 1, length) for length in batch.masks.shape[1:])
    places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))  # (2, H, W)
    middle = (batch.masks[:, None] * places).sum(dim=(2, 3)) / batch.masks.sum(dim=(1, 2))[:, None]
    cut_off = (batch.masks & (places.abs().amax(dim=0) == 1)).flatten(1).any(dim=1)
    ranked = torch.where(right & ~cut_off, middle.norm(dim=1), -1).argsort(descending=True)
    return ranked[: int((right & ~cut_off).sum())].tolist()


def maps_of(
    classifier: Classifier, image: Images, target: Target, names: list[str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return ({explainer: map (H, W)}, {explainer: reason why it does not support the network})."""
    maps, reasons = {}, {}
    for name in names:
        try:
            maps[name] = load_explainer(name)(classifier, image, target)[0].numpy()
        except UserError as error:
            reasons[name] = str(error)
    return maps, reasons


def draw(path: Path, image: Tensor, mask: Tensor, maps: dict[str, np.ndarray]) -> None:
    """Draw the image and all maps. Each map has its own scale, which is diverging around zero for a signed map."""
    from matplotlib.figure import Figure

    rows = -(-(len(maps) + 1) // COLUMNS)
    figure = Figure(figsize=(2 * COLUMNS, 2.25 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axis in axes:
        axis.axis("off")
    axes[0].imshow(image.permute(1, 2, 0).numpy())
    axes[0].set_title("image", fontsize=10)
    for axis, (name, values) in zip(axes[1:], maps.items(), strict=False):
        most = np.abs(values).max()
        scale = {"cmap": "RdBu_r", "vmin": -most, "vmax": most} if values.min() < 0 else {"cmap": "inferno"}
        axis.imshow(values, **scale)
        axis.contour(mask.numpy(), levels=[0.5], colors="black" if values.min() < 0 else "white", linewidths=0.8)
        axis.set_title(name, fontsize=10)
    figure.savefig(path, format="png", metadata={"Software": None})
