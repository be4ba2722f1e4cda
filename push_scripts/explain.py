"""Explain one image: draw its saliency maps side by side.

example:
  saliency-bench explain cat.jpg --model microsoft/resnet-18 --out cat.png
  saliency-bench explain cat.jpg --model microsoft/resnet-18 \\
      --explainers gradcam rise:masks=1000 --target "tiger cat" --out tiger.png
  saliency-bench explain cat.jpg --model microsoft/resnet-18 \\
      --target "tiger cat" --against "Egyptian cat" tabby --out why.png

The drawing shows the image after preprocessing, then one map per explainer, with the predicted class and its
probability below. Each class given with --target (default: the predicted class) has one row, followed by one row for
each other class or group given with --against. A group consists of class names joined by "|", or is defined by --groups
or built in (ImageNet, pets, VOC, shapes).
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from saliency_bench.errors import without_controls
from saliency_bench.push_scripts import _shared

SECTION = "start here"
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("picture", metavar="PICTURE", help="image file")
    _shared.settings(parser, "model")
    text = (
        "texts with which a vision-language model (CLIP, SigLIP) compares the image: one per class, or a JSON file "
        "{class: [texts]}"
    )
    _shared.setting(parser, "prompts", text=text)
    text = (
        "names of explainers; options follow a colon, as in rise:masks=1000 (default: an explainer that supports "
        "the network)"
    )
    _shared.setting(parser, "explainers", default=None, text=text)
    text = "class of the model that the maps explain, by name or number (default: the predicted class)"
    parser.add_argument("--target", metavar="CLASS", nargs="+", action="extend", default=[], help=text)
    text = "classes or groups to contrast with each target, as in 'why a cat and not a dog?'"
    parser.add_argument("--against", metavar="CLASS", nargs="+", action="extend", default=[], help=text)
    _shared.setting(parser, "groups")
    parser.add_argument("--out", required=True, metavar="FILE", help=f"image file to write ({', '.join(SUFFIXES)})")
    _shared.settings(parser, "activation", "device")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Explain one image and draw its saliency maps side by side."""
    _check(args)  # before torch is imported
    from saliency_bench.bound_explainer import as_explainer
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.compute.maps.strip import explain_many
    from saliency_bench.utils.files import write_with

    for name in args.explainers or ():
        as_explainer(name)  # checks the options before a model is loaded
    out = Path(args.out)
    classifier = load_classifier(
        args.model, device=args.device, activation=args.activation, prompts=_prompts(args.prompts)
    )
    seen, drawn = explain_many(args.picture, classifier, args.explainers or (), args.target, args.against, args.groups)
    form = {".jpg": "JPEG", ".jpeg": "JPEG"}.get(out.suffix.lower(), out.suffix[1:].upper())
    write_with(out, lambda path: drawn.save(path, format=form))
    if args.json:
        print(json.dumps(_result(args, seen), indent=2))
        return
    print(f"{without_controls(seen[0].prediction)} ({seen[0].probability:.1%})")
    for explanation in seen:
        reliable = "" if explanation.reliability is None else f", reliability {explanation.reliability:.2f}"
        print(f"  {explanation.explainer} of {without_controls(explanation.target)}{reliable}")
    print(f"picture: {out}")


def _check(args: Namespace) -> None:
    """Raise UserError for invalid arguments. This check runs before anything is loaded."""
    from saliency_bench.compute.classifiers.prompts import texts_of
    from saliency_bench.compute.preflight import check_items, check_model
    from saliency_bench.errors import UserError
    from saliency_bench.utils.storage import check_output_file

    picture, out = Path(args.picture), Path(args.out)
    if not picture.is_file():
        raise UserError(f"there is no image '{picture}'; pass the name of an image file")
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out {out} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if out.exists() and out.samefile(picture):
        raise UserError(f"--out {out} is the input image; choose a different file")
    check_output_file(out)
    check_items("explainers", args.explainers)
    if args.prompts is not None:
        texts_of(_prompts(args.prompts), None)
    check_model(args.model)


def _prompts(given: list[str] | None) -> Any:
    """Convert --prompts to the format that `load_classifier` expects.

    If several prompts without {} are given, each prompt also serves as a class name.
    """
    from saliency_bench.compute.classifiers.prompts import read_prompts

    several = given is not None and len(given) > 1
    return None if given is None else read_prompts(given, given if several and "{}" not in "".join(given) else None)


def _result(args: Namespace, seen: list) -> dict:
    first = seen[0]
    maps = [
        {
            "explainer": explanation.explainer,
            "target": explanation.target,
            "why": explanation.why,
            "reliability": explanation.reliability,
        }
        for explanation in seen
    ]
    about = {"picture": args.picture, "model": args.model, "out": args.out}
    return about | {"prediction": first.prediction, "probability": first.probability, "maps": maps}
