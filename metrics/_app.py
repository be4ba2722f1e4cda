"""The Space of a metric: its card, and for metrics of maps and masks a form to try one. Pushed as app.py."""

import os
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import evaluate
import gradio as gr

HERE = Path(__file__).resolve().parent
NAME = next(path.stem for path in sorted(HERE.glob("saliency_*.py")))
CARD = (HERE / "README.md").read_text(encoding="utf-8").split("---\n", 2)[-1]


def score(saliency, mask):
    if saliency is None or mask is None:
        raise gr.Error("give a saliency map and a mask")
    try:
        metric = evaluate.load(str(HERE / f"{NAME}.py"))
        return metric.compute(predictions=[saliency], references=[mask > 127])[NAME]
    except ValueError as error:
        raise gr.Error(str(error)) from error


with gr.Blocks(title=NAME) as demo:
    gr.Markdown(CARD)
    if (HERE / "score.py").exists() and "masks" in (HERE / "score.py").read_text(encoding="utf-8"):
        with gr.Row():
            saliency = gr.Image(label="saliency map, brighter = more salient", image_mode="L", type="numpy")
            mask = gr.Image(label="mask of the same size, white = inside", image_mode="L", type="numpy")
            result = gr.Number(label=NAME, precision=4)
        gr.Button("score").click(score, [saliency, mask], result)

if __name__ == "__main__":
    demo.launch()
