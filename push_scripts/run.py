"""Score explainers by metrics on a dataset and a classifier; write records, summary and report.

example:
  saliency-bench run --dataset shapes-xai --model models/resnet-18-shapes --explainers gradcam rise:masks=1000 random \\
      --metrics saliency_miou saliency_pointing_game --limit 64 --out runs/first
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench.push_scripts import _shared

EXPLAINERS = ("integrated_gradients", "rise:masks=1000", "centre", "random")
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")


def arguments(parser: ArgumentParser) -> None:
    _shared.dataset(parser)
    parser.add_argument("--model", required=True, help="Hub id, local folder or torchvision:NAME")
    parser.add_argument(
        "--explainers", nargs="+", default=EXPLAINERS, metavar="NAME",
        help=f"names, with options as rise:masks=1000,p=0.3 (default, for any network: {' '.join(EXPLAINERS)})",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", nargs="+", default=METRICS, metavar="NAME",
        help=f"names, with options as saliency_miou:threshold=0.3 (default: {' '.join(METRICS)})",
    )  # fmt: skip
    _shared.out(parser)
    parser.add_argument("--split", default="test", help="default: test")
    parser.add_argument(
        "--target",
        default="label",
        help="label, predicted, contrast:second (the predicted class and not the runner-up of its group), "
        "or a CSV file with image_id,target[,against]",
    )
    parser.add_argument("--label-map", metavar="FILE", help="JSON: {dataset class: model class, or a list of them}")
    parser.add_argument(
        "--groups", metavar="FILE",
        help="groups of the model's classes: JSON {group: [class, ...]} or CSV with class,group "
             "(default: known for ImageNet, pets, VOC and shapes)",
    )  # fmt: skip
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], help="of the network; default: fp32")
    parser.add_argument("--channels-last", action="store_true", help="memory layout that many networks run faster in")
    parser.add_argument(
        "--strict", action="store_true", help="stop at a sample or chunk that fails, instead of leaving it out"
    )
    _shared.work(parser, batch_size=16)
    _shared.json(parser)


def main(args: Namespace) -> int:
    from saliency_bench.engine.run import run
    from saliency_bench.results.summary import LEGEND

    result = run(
        dataset=args.dataset,
        model=args.model,
        explainers=args.explainers,
        metrics=args.metrics,
        out=args.out,
        split=args.split,
        target=args.target,
        label_map=args.label_map,
        limit=args.limit,
        batch_size=args.batch_size,
        seed=args.seed,
        device=args.device,
        progress=not args.json,
        strict=args.strict,
        precision=args.precision,
        channels_last=args.channels_last,
        groups=args.groups,
    )
    if not result.summary:  # another process of the same run prints
        return 0
    if args.json:
        print(json.dumps(result.summary, indent=2))
        return _faulty(result)
    accuracy = result.summary["model"]["accuracy"]
    print(f"{result}\n")
    right = "accuracy unknown" if accuracy["value"] is None else f"accuracy {accuracy['value']:.1%}"
    print(f"{accuracy['n']} samples, {right}, {LEGEND}")
    print(f"report: {result.report}")
    return _faulty(result)


def _faulty(result) -> int:
    """2 if anything failed, said in one line; the run is whole all the same."""
    faults = result.summary["faults"]
    if not faults:
        return 0
    from saliency_bench.utils.messages import complain

    reason = next(iter(faults))
    complain(
        f"error: {sum(faults.values())} records were left out, for example: {reason}; "
        f"all are in {result.folder / 'records.parquet'}"
    )
    return 2
