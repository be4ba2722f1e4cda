"""Test whether a change of the code changes a score: two commits score the same images, and the records are compared.

example:
  python benchmarks/before_and_after.py --before HEAD~1 --after HEAD

Each commit is checked out (`git worktree`) with the folder structure of a wheel. On the embedded drawings, every metric
scores every explainer that supports a small ResNet or a small ViT with random weights. The last lines show the number
of common scores, the number of equal cell ids, and the largest difference. The exit code is 1 if a score differs by
more than 1e-12 or is missing for one commit.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
PLUGINS = ("explainers", "metrics", "hub_builders", "model_cards", "push_scripts", "spaces", "suites")
LARGEST = 1e-12  # maximum difference between scores that count as equal
COLUMNS = ("explainer", "explainer_options", "metric", "metric_options", "target", "image_id")

# Uses only public names, because both commits run this code.
RUN = """
import sys
from pathlib import Path
import torch
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification
from transformers import ViTImageProcessor
import saliency_bench as sb

out, count = Path(sys.argv[1]), int(sys.argv[2])
data = sb.build("shapes-xai", out / "shapes", size=32, count=160, progress=False)
names = dict(enumerate(sb.load_dataset(data).features["label"].names))
labels = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
networks = {
    "resnet": lambda: ResNetForImageClassification(ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", **labels)),
    "vit": lambda: ViTForImageClassification(ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=32, patch_size=8,
        **labels)),
}
for name, make in networks.items():
    torch.manual_seed(0)
    network = make().eval()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    network.save_pretrained(out / name)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(out / name)
    classifier = sb.load_classifier(out / name, device="cpu")
    images = classifier.prepare(sb.load_dataset(data).select(range(2))).images
    fitting = []
    for explainer in sb.list_explainers():
        short = {"rise": "rise:masks=30", "lime": "lime:samples=30", "smoothgrad": "smoothgrad:samples=5"}
        chosen = short.get(explainer, explainer)
        try:
            sb.load_explainer(chosen)(classifier, images, sb.targets.one_hot([0, 1], len(names)))
            fitting.append(chosen)
        except ValueError:
            pass
    without = {"retrained", "first_right", "other"}  # whole trainings, people, a second network
    def inputs_of(name):
        metric = sb.load_metric(name)
        return metric.inputs if hasattr(metric, "inputs") else metric.needs  # its name in older versions

    metrics = [metric for metric in sb.list_metrics() if not without & set(inputs_of(metric))]
    for target in ("label", "predicted", "contrast:second"):
        chosen = fitting if target == "label" else fitting[:4]
        sb.run(dataset=str(data), model=str(out / name), explainers=chosen, metrics=metrics, target=target,
               out=out / "runs" / f"{name}-{target.partition(':')[0]}", limit=count, batch_size=4, device="cpu",
               progress=False)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--after", default="HEAD", metavar="COMMIT")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="number of images (default: 10)")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        before, after = (scores(commit, Path(folder) / side, args.limit)
                         for side, commit in (("before", args.before), ("after", args.after)))  # fmt: skip
    return compared(before, after)


def scores(commit: str, folder: Path, count: int) -> dict[tuple, tuple[str, float | None]]:
    """Return {explainer, metric, image ...: (cell id, score)} from one commit."""
    tree, package = folder / "tree", folder / "site" / "saliency_bench"
    subprocess.run(["git", "worktree", "add", "--detach", tree, commit], cwd=ROOT, check=True, capture_output=True)
    try:
        shutil.copytree(tree / "saliency_bench", package)
        for plugins in filter(lambda name: (tree / name).is_dir(), PLUGINS):
            shutil.copytree(tree / plugins, package / plugins)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    own = {"PYTHONPATH": str(package.parent), "SALIENCY_BENCH_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    print(f"{commit}: running", flush=True)
    out = folder / "out"
    out.mkdir()
    subprocess.run([sys.executable, "-c", RUN, out, str(count)], cwd=folder, env=os.environ | own, check=True)
    found: dict[tuple, tuple[str, float | None]] = {}
    for path in sorted((out / "runs").glob("*/records.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row.get("part") is None:  # score of the sample, not of a part; older versions have no parts
                found[(path.parent.name, *(row[column] for column in COLUMNS))] = row["cell_id"], row["value"]
    return found


def compared(before: dict, after: dict) -> int:
    both, missing = before.keys() & after.keys(), sorted(before.keys() ^ after.keys())
    differing = [key for key in both if not same(before[key][1], after[key][1])]
    ids = sum(before[key][0] == after[key][0] for key in both)
    gaps = [abs(before[key][1] - after[key][1]) for key in both if None not in (before[key][1], after[key][1])]
    for what, keys in (("differs", differing), ("on one side only", missing)):
        for key in keys[:10]:
            print(f"{what}: {key}: {before.get(key)} and {after.get(key)}")
    print(f"{len(before)} scores before, {len(after)} after, {len(both)} in both")
    print(
        f"same cell id: {ids}; differing by more than {LARGEST:g}: {len(differing)}; largest: {max(gaps, default=0):g}"
    )
    return int(bool(differing or missing))


def same(one: float | None, two: float | None) -> bool:
    return one is two is None if one is None or two is None else abs(one - two) <= LARGEST


if __name__ == "__main__":
    sys.exit(main())
