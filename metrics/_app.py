"""App of a metric's Space: a form for trying the metric on your own images, and the metric's card. Published as app.py.

The fields of the form are the inputs of the metric's function. Depending on the metric, these are a map and a mask, an
image with its map and a classifier, or, if the metric requests maps itself, an image, a classifier and an explainer.
"""

import ast
import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import evaluate
import gradio as gr
import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
MODULE = re.compile(r"^class \w+\(\w+, evaluate\.Metric\):", re.MULTILINE)  # class of the metric for `evaluate`
NAME = next(path.stem for path in sorted(HERE.glob("*.py")) if MODULE.search(path.read_text(encoding="utf-8")))
CARD = (HERE / "README.md").read_text(encoding="utf-8").split("---\n", 2)[-1]
SIDE = 224  # side of the example in pixels
CLASSIFIER = "microsoft/resnet-18"


def score(saliency, mask):
    """Score one map (H, W) against its mask (H, W). Mask values range from 0 to 255."""
    if saliency is None or mask is None:
        raise gr.Error("the saliency map or the mask is missing; upload both")
    return computed(predictions=[saliency], references=[mask > 127])


def score_curves(picture, saliency, model, chosen):
    """Return (score, prediction as text) for one image and its map. If no class is chosen, the top class is used."""
    if picture is None or saliency is None:
        raise gr.Error("the image or its saliency map is missing; upload both")
    if picture.size != saliency.size:
        raise gr.Error(
            f"the map has size {saliency.size}, but the image has size {picture.size}; "
            "upload two files of the same size"
        )
    classifier = load(model)
    images, seen, target = read(classifier, picture, chosen)
    # Pass the map as an image, so that it is resized and cropped exactly like the image.
    maps = classifier.prepare([{"image": saliency.convert("RGB")}]).images.mean(dim=1)
    return computed(predictions=maps, references=[target], images=images, classifier=classifier), seen


def score_explainer(picture, model, explainer, chosen=""):
    """Return (score, prediction as text) for an explainer's map of one image."""
    if picture is None:
        raise gr.Error("the image is missing; upload one")
    classifier = load(model)
    images, seen, target = read(classifier, picture, chosen)
    inputs = {"references": [target]} if OF_A_CLASS else {}
    return computed(images=images, classifier=classifier, explainer=explainer.strip(), **inputs), seen


def computed(**inputs):
    """Call the metric with these inputs and return its score as text.

    Raises:
        gr.Error: The metric cannot be computed.
    """
    try:
        metric = evaluate.load(str(HERE / f"{NAME}.py"))
        return f"{metric.compute(**inputs)[NAME]:.4f}"
    except (ValueError, ImportError) as error:
        raise gr.Error(str(error)) from error


@lru_cache(maxsize=1)
def load(model):
    """Load a classifier from the Hub or torchvision. Folders on the machine that runs the Space are rejected."""
    model = model.strip()
    if not re.fullmatch(r"\w[\w-]*/\w[\w.-]*|torchvision:\w+", model) or Path(model).exists():
        raise gr.Error(f"'{model}' is not a classifier on the Hub; enter the id of a model, such as {CLASSIFIER}")
    try:
        from saliency_bench.compute.classifiers.loading import load_classifier

        return load_classifier(model).eval()
    except (ValueError, ImportError) as error:
        raise gr.Error(str(error)) from error


def read(classifier, picture, chosen):
    """Return (prepared image (1, 3, H, W), prediction as text, class index).

    The class is `chosen`, or else the top class.
    """
    import torch

    from saliency_bench.compute.targets.label_maps import index_of
    from saliency_bench.target_weights import probabilities as activated

    images = classifier.prepare([{"image": picture}]).images
    with torch.no_grad():
        probabilities = activated(classifier(images), classifier.activation)[0]
    best, names = int(probabilities.argmax()), classifier.labels
    try:
        target = index_of(chosen, names, len(probabilities)) if chosen.strip() else best
    except ValueError as error:
        raise gr.Error(str(error)) from error
    lines = [
        f"{names[label] if names else label}: {probabilities[label]:.1%}" for label in dict.fromkeys((best, target))
    ]
    return images, ", ".join(lines), target


def asks():
    """Return the names of the required inputs of the metric's function."""
    path = HERE / "score.py"
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    signatures = [node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == NAME]
    return {argument.arg for known in signatures for argument in known.args[: len(known.args) - len(known.defaults)]}


def example():
    """Return (map, mask): a round mask, and a map with its maximum next to the centre of the mask."""
    saliency = np.exp(-((UP - 0.45) ** 2 + (LEFT - 0.5) ** 2) / 0.02)
    return (255 * saliency).astype(np.uint8), 255 * DISC.astype(np.uint8)


def drawing():
    """Return an image of a ball under a blue sky."""
    sky = np.stack([110 + 90 * UP, 160 + 60 * UP, 0 * UP + 230], axis=-1)
    ball = np.array([235, 120, 30]) * (1.15 - UP[..., None])
    return Image.fromarray(np.where(DISC[..., None], ball, sky).clip(0, 255).astype(np.uint8))


def an_image(value, label, mode, type):
    """Return a form field for an image."""
    return gr.Image(value, label=label, image_mode=mode, type=type, format="png")  # the default format is lossy


def a_map(value, type):
    """Return a form field for a saliency map."""
    return an_image(value, "saliency map, brighter = more salient", "L", type)


def a_picture():
    """Return a form field for the image to explain."""
    return an_image(drawing(), "image", "RGB", "pil")


def a_classifier():
    """Return a form field for a classifier."""
    return gr.Textbox(CLASSIFIER, label="classifier: id on the Hub, or torchvision:NAME")


def a_class():
    """Return a form field for a class."""
    return gr.Textbox("", label="class: name or number; empty for the predicted class")


def an_explainer():
    """Return a form field for an explainer."""
    known = explainers()
    first = "gradcam" if "gradcam" in known else known[0]
    return gr.Dropdown(
        known, value=first, label="explainer, optionally with options, such as rise:masks=500", allow_custom_value=True
    )


def explainers():
    """Return the names of the explainers."""
    from saliency_bench.bound_explainer import list_explainers

    return list_explainers()


UP, LEFT = np.mgrid[:SIDE, :SIDE] / SIDE
DISC = (UP - 0.5) ** 2 + (LEFT - 0.55) ** 2 < 0.03
ASKS = asks()
OF_A_CLASS = bool(ASKS & {"maps", "target"})  # other metrics choose the classes themselves

with gr.Blocks(title=NAME) as demo:
    function: Callable | None = None
    if {"maps", "masks"} == ASKS:
        function = score
        with gr.Row():
            saliency, mask = example()
            inputs = [a_map(saliency, "numpy")]
            inputs += [an_image(mask, "mask of the same size, white = inside", "L", "numpy")]
    elif {"curves"} == ASKS - {"labels"}:  # for accuracy, the class is the correct label
        function = score_curves
        with gr.Row():
            inputs = [a_picture(), a_map(example()[0], "pil")]
        with gr.Row():
            inputs += [a_classifier(), a_class()]
    elif "explain" in ASKS and "masks" not in ASKS:
        function = score_explainer
        with gr.Row():
            inputs = [a_picture()]
            with gr.Column():
                inputs += [a_classifier(), an_explainer()]
                inputs += [a_class()] if OF_A_CLASS else []
    if function is None:
        inputs_text = ", ".join(sorted(ASKS)) or "other inputs"
        gr.Markdown(f"*{NAME} cannot be tried here, because it needs more than an image: {inputs_text}.*")
    else:
        with gr.Row():
            button = gr.Button("score", variant="primary")
            results = [gr.Textbox(label=NAME, interactive=False)]
            if function is not score:
                results += [gr.Textbox(label="prediction of the classifier", interactive=False)]
        button.click(function, inputs, results)
    gr.Markdown(CARD)

if __name__ == "__main__":
    demo.launch()
