"""Score baselines with every metric on drawings and photographs; write baselines.json and a table in each metric card.

example:
  python benchmarks/baselines.py             # many minutes: baselines.json, and the table of every card
  python benchmarks/baselines.py --write     # only the tables, from baselines.json

The drawings are shapes-xai at 64 x 64 pixels. The script trains two small ResNets for them, one for objects and one for
scenes. The photographs are photos-xai with EfficientNet-Lite0 (extra `demo`). For them, only metrics with few passes
through the network are computed. Metrics that train networks or need people are not measured. To resume, run the script
again with the same `--work`.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import ResNetConfig

import saliency_bench as sb
from saliency_bench import Classifier, Images, Maps, Target, registry
from saliency_bench.bound_metric import Metric, load_metric
from saliency_bench.utils.files import write_text

TABLE = Path(__file__).with_suffix(".json")
SIDE, COUNT, EPOCHS, LIMIT = 64, 1536, 30, 48  # same number as in the demo
NETWORK = {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [2, 2], "layer_type": "basic"}
BASELINES = ("random", "centre", "edges")
METHODS = {"gradcam": "Grad-CAM", "upside_down": "Grad-CAM times -1", "mask": "the mask"}
PHOTOGRAPHED = ("saliency_insertion:steps=8", "saliency_deletion:steps=8", "saliency_cds",
                "saliency_class_sensitivity", "saliency_single_deletion")  # fmt: skip
UNMEASURED = {"retrained": "networks to be trained", "first_right": "answers from people"}  # {input of a metric: text}
BEGIN, END = "<!-- baselines: python benchmarks/baselines.py -->", "<!-- end of baselines -->"
ABOUT = "Mean scores of three baselines, of Grad-CAM, of Grad-CAM with the opposite sign, and of the mask used as a map"
SETS = {
    "shapes-xai": f"{LIMIT} drawings of shapes-xai",
    "photos-xai": "the four photographs of photos-xai",
}

Means = dict[str, float | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("baselines"), metavar="DIR", help="datasets, networks, runs")
    parser.add_argument("--write", action="store_true", help="only write the tables of the cards, from baselines.json")
    args = parser.parse_args()
    if not args.write:
        table = {"shapes-xai": of_drawings(args.work), "photos-xai": of_photographs(args.work)}
        write_text(TABLE, json.dumps(table, indent=1) + "\n")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for name in registry.names("metrics"):
        path = card_of(name)
        write_text(path, with_block(path.read_text(encoding="utf-8"), block(load_metric(name), table)))


def upside_down(classifier: Classifier, images: Images, target: Target) -> Maps:
    """Return Grad-CAM times -1, so that the most salient pixels become the least salient."""
    return -sb.load_explainer("gradcam")(classifier, images, target)


def the_mask(classifier: Classifier, dataset: str) -> Callable[..., Maps]:
    """Return an explainer that returns the mask of each image as its map. Changed images are not supported."""
    batch = classifier.prepare(list(sb.load_dataset(dataset, split="test")))
    masks = {image.numpy().tobytes(): mask.float() for image, mask in zip(batch.images, batch.masks, strict=True)}

    def mask(classifier: Classifier, images: Images, target: Target) -> Maps:
        keys = [image.numpy().tobytes() for image in images]
        if not masks.keys() >= set(keys):
            raise ValueError("the mask of a changed image is not known")
        return torch.stack([masks[key] for key in keys])

    return mask


def of_drawings(folder: Path) -> dict[str, Means]:
    """Return {metric: {explainer: mean}} on shapes-xai."""
    data = str(drawings(folder))
    for name, column in (("objects", "label"), ("scenes", "scene")):
        if not (folder / name / "model.safetensors").exists():
            sb.train(dataset=data, model=ResNetConfig(**NETWORK), size=SIDE, epochs=EPOCHS, out=str(folder / name),
                     label_column=column, progress=False)  # fmt: skip
    names = sb.load_dataset(data, split="test").features["label"].names
    pairs = {" and ".join(pair): list(pair) for pair in zip(names[::2], names[1::2], strict=True)}
    return means(data, str(folder / "objects"), folder / "run", [metric.name for metric in measured()],
                 other_model=str(folder / "scenes"), other_label="scene", groups=pairs, limit=LIMIT)  # fmt: skip


def of_photographs(folder: Path) -> dict[str, Means]:
    """Return {metric: {explainer: mean}} on photos-xai."""
    from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite

    data = folder / "photos"
    if not data.exists():
        sb.build("photos-xai", data, progress=False)
    model = write_efficientnet_lite(folder / "lite0")
    of_maps = [metric.name for metric in measured() if metric.inputs == ("maps", "masks")]
    return means(str(data), str(model), folder / "run-photos", [*of_maps, *PHOTOGRAPHED], target="predicted",
                 label_map="photos_to_imagenet")  # fmt: skip


def drawings(folder: Path) -> Path:
    out = folder / "shapes"
    return out if out.exists() else sb.build("shapes-xai", out, size=SIDE, count=COUNT, progress=False)


def means(data: str, model: str, out: Path, metrics: Sequence[str], **settings: object) -> dict[str, Means]:
    """Score baselines and methods with these metrics and return {metric: {explainer: mean}}."""
    classifier = sb.load_classifier(model, device="cpu")
    explainers = [*BASELINES, "gradcam", upside_down, the_mask(classifier, data)]
    run = sb.run(dataset=data, model=classifier, explainers=explainers, metrics=metrics, out=out, device="cpu",
                 progress=False, **settings)  # fmt: skip
    print(run, *run.verdict, sep="\n", flush=True)
    table: dict[str, Means] = {}
    for cell in run.cells:
        table.setdefault(cell.metric, {})[cell.explainer] = cell.value
    return table


def measured() -> list[Metric]:
    """Return the metrics that neither train networks nor need people."""
    loaded = [load_metric(name) for name in registry.names("metrics")]
    return [metric for metric in loaded if not UNMEASURED.keys() & set(metric.inputs)]


def card_of(name: str) -> Path:
    return registry.files("metrics")[name].parent / "README.md"


def block(metric: Metric, table: dict[str, dict[str, Means]]) -> str:
    """Return the lines about baselines in the card of a metric."""
    for need, reason in UNMEASURED.items():
        if need in metric.inputs:
            why = f"Scores of baselines are not reported here, because the metric requires {reason}."
            text = f"{why} Include baselines such as `random` in your own evaluation."
            return "\n".join([BEGIN, "", text, "", END])
    better = "higher" if metric.higher_is_better else "lower"
    columns = [*BASELINES, *METHODS.values()]
    head = [f"| mean over | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    lines = [ABOUT, f"({better} is better):", "", *head]
    for name, title in SETS.items():
        if found := table[name].get(metric.name):
            numbers = [number(found.get(column)) for column in (*BASELINES, *METHODS)]
            lines.append(f"| {title} | {' | '.join(numbers)} |")
    if f"| {number(None)} |" in "\n".join(lines):
        lines += ["", "A dash marks a score that needs maps of changed images, for which there is no mask."]
    lines += ["", verdict(metric, table["shapes-xai"][metric.name])]
    return "\n".join([BEGIN, "", *lines, "", END])


def verdict(metric: Metric, values: Means) -> str:
    """Return a sentence about the baselines that reach the best score on the drawings."""
    sign = 1 if metric.higher_is_better else -1
    best = max(sign * value for value in values.values() if value is not None)
    reached = [name for name in BASELINES if (value := values.get(name)) is not None and sign * value >= best]
    if not reached:
        return "On the drawings, no baseline has the best score."
    names = " and ".join(f"`{name}`" for name in reached)
    subject, verb = ("baseline", "has") if len(reached) == 1 else ("baselines", "have")
    found = f"On the drawings, the {subject} {names} {verb} the best score"
    return f"{found}, so a good score does not show that a map is right."


def number(value: float | None) -> str:
    """Return a mean with three digits, or a dash if it is missing."""
    return "–" if value is None else f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def with_block(card: str, text: str) -> str:
    """Return a card with these lines at the end of its limitations, in place of earlier ones."""
    card = re.sub(rf"{re.escape(BEGIN)}.*?{re.escape(END)}\n\n", "", card, flags=re.DOTALL)
    return card.replace("## Further references", f"{text}\n\n## Further references", 1)


if __name__ == "__main__":
    main()
