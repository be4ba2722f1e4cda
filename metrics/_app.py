"""The Space of a metric: for metrics of maps and masks a form to try one, and the card. Pushed as app.py."""

import ast
import os
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import evaluate
import gradio as gr
import numpy as np

HERE = Path(__file__).resolve().parent
NAME = next(path.stem for path in sorted(HERE.glob("saliency_*.py")))
CARD = (HERE / "README.md").read_text(encoding="utf-8").split("---\n", 2)[-1]
SIDE = 224  # pixels of the example


def score(saliency, mask):
    """The score of one map (H, W) and its mask, 0 to 255."""
    if saliency is None or mask is None:
        raise gr.Error("give a saliency map and a mask")
    try:
        metric = evaluate.load(str(HERE / f"{NAME}.py"))
        return f"{metric.compute(predictions=[saliency], references=[mask > 127])[NAME]:.4f}"
    except ValueError as error:
        raise gr.Error(str(error)) from error


def takes_maps_and_masks():
    """Whether these two are all that the metric asks for."""
    path = HERE / "score.py"
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    found = [node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == NAME]
    return bool(found) and [argument.arg for argument in found[0].args] == ["maps", "masks"]


def example():
    """A map that is highest beside the middle of a round mask."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    saliency = np.exp(-((y - 0.45) ** 2 + (x - 0.5) ** 2) / 0.02)
    mask = (y - 0.5) ** 2 + (x - 0.55) ** 2 < 0.03
    return (255 * saliency).astype(np.uint8), 255 * mask.astype(np.uint8)


with gr.Blocks(title=NAME) as demo:
    if takes_maps_and_masks():
        pictures = example()
        with gr.Row():
            saliency = gr.Image(
                pictures[0], label="saliency map, brighter = more salient", image_mode="L", type="numpy"
            )
            mask = gr.Image(pictures[1], label="mask of the same size, white = inside", image_mode="L", type="numpy")
        with gr.Row():
            button = gr.Button("score", variant="primary")
            result = gr.Textbox(label=NAME, interactive=False)
        button.click(score, [saliency, mask], result)
    gr.Markdown(CARD)

if __name__ == "__main__":
    demo.launch()
