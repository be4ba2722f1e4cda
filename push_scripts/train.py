"""Train a classifier on a dataset.

example:
  saliency-bench train --dataset shapes-xai --model microsoft/resnet-18 \\
      --epochs 5 --out models/resnet-18-shapes

The result is a folder with a transformers checkpoint, its image processor and training_log.json. The same command
resumes a stopped training run after its last complete epoch.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared

SECTION = "prepare"
KEPT = "complete epochs", "{out}.training.pt"  # what is kept when the command is stopped


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    _shared.setting(parser, "dataset", default="shapes-xai")
    parser.add_argument(
        "--model", required=True, help="Hub id or folder of pretrained weights, or a config.json to start from scratch"
    )
    _shared.setting(parser, "out")
    epochs = "number of passes over the training images (default: 30)"
    parser.add_argument("--epochs", type=int, default=30, metavar="N", help=epochs)
    rate = "learning rate of Adam (default: 0.001)"
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="X", help=rate)
    parser.add_argument("--size", type=int, default=224, metavar="N", help="resize images to N x N (default: 224)")
    several = (
        "softmax if each image has one class, or sigmoid if an image may have several classes, listed in the column "
        "`labels` (default: softmax)"
    )
    parser.add_argument("--activation", choices=("softmax", "sigmoid"), default="softmax", help=several)
    precision = "fp32, or bf16 for mixed precision (default: fp32)"
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help=precision)
    limit = "train on only N randomly selected images (or a few more, because groups are not split)"
    _shared.setting(parser, "limit", text=limit)
    _shared.settings(parser, "label_column", "seed", "device")
    _shared.setting(parser, "batch_size", default=32, text="images per step (default: 32)")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Train a classifier on a dataset."""
    from saliency_bench.compute.preflight import check_settings, check_start, check_writable

    check_settings({"dataset": args.dataset, "device": args.device})  # before torch is imported
    check_start(args.model)
    check_writable(Path(args.out))
    from saliency_bench.compute.training import train
    from saliency_bench.utils.files import read_json

    out = train(
        dataset=args.dataset,
        model=args.model,
        out=args.out,
        epochs=args.epochs,
        learning_rate=args.learning_rate,
        batch_size=args.batch_size,
        size=args.size,
        seed=args.seed,
        limit=args.limit,
        label_column=args.label_column,
        activation=args.activation,
        precision=args.precision,
        device=args.device,
        progress=not args.json,
    )
    log = read_json(out / "training_log.json")
    if args.json:
        print(json.dumps(log, indent=2))
        return
    kind = "accuracy" if args.activation == "softmax" else "mean average precision"
    print(f"test {kind} {log['test_accuracy']:.1%}; the checkpoint is in {out}")
    print(f"next: saliency-bench run --dataset {args.dataset} --model {out} --out runs/{out.name}")
