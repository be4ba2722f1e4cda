"""Write what is needed to make maps with a method of one's own: ids, targets, the prepared frame and an example.

example:
  saliency-bench template shapes-xai saliency-bench-demo/resnet --out mine
  python mine/example.py
  saliency-bench submit mine --name my-method --dry-run

The README.md in the folder says how maps are to be made; `--images npy` writes the images as the classifier gets them.
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench.push_scripts import _shared


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="name, Hub id or folder")
    parser.add_argument("model", metavar="MODEL", help="Hub id, local folder or torchvision:NAME")
    _shared.out(parser)
    parser.add_argument("--split", default="test", help="default: test")
    parser.add_argument(
        "--target", default="label", help="label, predicted, contrast:second, or a CSV file (default: label)"
    )
    parser.add_argument("--label-map", metavar="FILE", help="JSON: {dataset class: model class, or a list of them}")
    parser.add_argument("--images", choices=["png", "npy"], help="write the prepared frames, as 8 or 32 bits")
    _shared.work(parser, batch_size=16)
    _shared.json(parser)


def main(args: Namespace) -> None:
    from saliency_bench.leaderboard.template import read_template, template

    out = template(
        args.dataset,
        args.model,
        args.out,
        split=args.split,
        target=args.target,
        label_map=args.label_map,
        limit=args.limit,
        images=args.images,
        seed=args.seed,
        batch_size=args.batch_size,
        device=args.device,
        progress=not args.json,
    )
    told, _ = read_template(out)
    if args.json:
        print(json.dumps({"template": str(out), **told.model_dump()}, indent=2))
        return
    print(f"{out}: {told.samples} images, maps of {told.size[0]} x {told.size[1]}; {out / 'README.md'} says how")
    print(f"next: python {out / 'example.py'}")
    print(f"      saliency-bench submit {out} --name my-method --dry-run")
