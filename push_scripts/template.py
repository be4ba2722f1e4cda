"""Write a folder with everything you need to score maps of your own method.

example:
  saliency-bench template shapes-xai saliency-bench-demo/resnet --out mine
  python mine/example.py
  saliency-bench submit mine --name my-method --with-maps --dry-run

The folder contains image ids, targets, the size of the maps, an example script and a README.md that explains them.
`--images npy` adds the exact input images of the classifier.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared
from saliency_bench.spec import RunSpec, about
from saliency_bench.utils.messages import counted

SECTION = "publish"
# The first two are positional arguments; the other settings are not needed for a template.
LEFT_OUT = ("dataset", "model", "explainers", "metrics", "maps", "other_model", "other_label")


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    for name in ("dataset", "model"):
        parser.add_argument(name, metavar=name.upper(), help=about(name))
    _shared.settings(parser, *(name for name in RunSpec.model_fields if name not in LEFT_OUT))
    parser.add_argument(
        "--images", choices=["png", "npy"], help="also write the prepared images, with 8 or 32 bits per channel"
    )
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Write a template and print its path."""
    from saliency_bench.compute.preflight import check_empty, check_settings

    check_settings(_shared.given(args))  # before torch is imported
    check_empty(Path(args.out))
    from saliency_bench.board.template import read_template, template

    out = template(**_shared.given(args), images=args.images, progress=not args.json)
    content, _ = read_template(out)
    if args.json:
        print(json.dumps({"template": str(out), **content.model_dump()}, indent=2))
        return
    height, width = content.size
    print(f"{out}: {counted(content.samples, 'image')}, maps of {height} x {width}; see {out / 'README.md'}")
    print(f"next: python {out / 'example.py'}")
    print(f"      saliency-bench submit {out} --name my-method --with-maps --dry-run")
