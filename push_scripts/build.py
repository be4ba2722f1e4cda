"""Build a dataset folder from its source files.

example:
  saliency-bench build shapes-xai --out shapes --size 32 --count 100
  saliency-bench build pet-xai --source oxford-iiit-pet --out pet-xai
  saliency-bench build pet-xai --help

The last example shows what the source folder must contain and which options this dataset has. The result is a folder of
Parquet files with a dataset card and a build report.
"""

import argparse
import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

from saliency_bench import options, registry
from saliency_bench.arguments import Parser, parse
from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _shared
from saliency_bench.terminal import Help
from saliency_bench.utils.progress import silent

SECTION = "prepare"
INNER = "hub_builders"  # the options of the command depend on the first argument, which names a dataset
KEPT = "finished batches", ".{out}.building/batches/*"  # what is kept when the command is stopped


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    summaries = {name: registry.summary(path) for name, path in registry.files("hub_builders").items()}
    width = max(map(len, summaries), default=0)
    listing = "\n".join(f"  {name:<{width}}  {text}" for name, text in summaries.items())
    parser.usage = f"{parser.prog} NAME [--source DIR] --out DIR [options]"
    parser.description = f"{parser.description}\n\ndatasets:\n{listing}"
    parser.add_argument("name", metavar="NAME", help="name of the dataset")
    rest = parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="options", help="shown by NAME --help")
    rest.required = False


def main(args: argparse.Namespace) -> int:
    """Build a dataset. Each dataset has its own parser, because its options depend on its builder."""
    _check_name(args.name)
    builder = registry.load("hub_builders", args.name)
    given = vars(parse(builder_parser(args.name, builder), args.rest))
    from saliency_bench.data.build_report import read_report
    from saliency_bench.data.building import build

    chosen = {key: given[key] for key in options.defaults(builder.samples) if key != "seed"}
    as_json = given["json"] is True  # a builder may have an option with the same name
    with silent(given["quiet"]):
        out = build(
            args.name,
            given["out"],
            given["source"],
            given["overwrite"],
            progress=not as_json,
            seed=given["seed"],
            workers=given["workers"],
            license=given.get("license"),
            title=given.get("title"),
            **chosen,
        )
        build_report = read_report(out)
        print(json.dumps(build_report, indent=2, ensure_ascii=False) if as_json else summary(build_report, out))
    return 0


def _check_name(name: str) -> None:
    """Raise UserError if a file or folder was passed instead of a name. The message suggests a command for it."""
    path = Path(name).expanduser()
    known = name.rpartition("/")[2] if not path.exists() else name
    if known in registry.names(INNER) or not (path.exists() or "/" in name):
        return
    unknown = registry.unknown_item(INNER, name)
    if "/" not in name and str(unknown).endswith("?"):  # probably a misspelt dataset
        raise unknown
    how = {
        ".json": f"coco-json --json {name} --images DIR",
        ".yaml": f"yolo --names {name} --images DIR --labels DIR",
    }.get(path.suffix, f"folder --images {name}")
    raise UserError(
        f"{name} is not the name of a dataset; for your own images, run `saliency-bench build {how} --out NEW`"
    )


def inner(name: str) -> argparse.ArgumentParser:
    """Return the parser for the dataset with this name."""
    return builder_parser(name, registry.load(INNER, name))


def builder_parser(name: str, builder: ModuleType) -> argparse.ArgumentParser:
    """Return the parser for the options of a dataset's builder."""
    parser = Parser(
        prog=f"saliency-bench build {name}",
        description=(builder.__doc__ or "").strip(),
        epilog=epilog(name, builder),
        formatter_class=Help,
        allow_abbrev=False,
    )
    embedded = getattr(builder, "EMBEDDED", False)
    own_data = getattr(builder, "OWN_DATA", "")
    about = f"folder of the {own_data}" if own_data else "folder with the downloaded raw data"
    about = "folder of a built dataset" if getattr(builder, "DERIVED", False) else about
    flags = [f"--{own_data}", "--source"] if own_data else ["--source"]
    parser.add_argument(*flags, dest="source", metavar="DIR", help=argparse.SUPPRESS if embedded else about)
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="output folder (created when the dataset is complete)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset built there earlier")
    seed = "seed for the splits and all random choices (default: 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=seed)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="number of threads or processes (default: one per core)"
    )
    if own_data:
        parser.add_argument("--name", dest="title", help="name of the dataset in its card and in reports")
        parser.add_argument(
            "--license", metavar="LICENCE", help="licence of the dataset, such as cc-by-4.0 (default: not stated)"
        )
    group = parser.add_argument_group(f"options of {name}")
    known = options.defaults(builder.samples)
    for key, default in known.items():
        if key != "seed":
            add_option(group, key, default, help_of(builder, key))
    if "json" in known:
        parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    else:
        _shared.output(parser, "print the build report as JSON")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def epilog(name: str, builder: ModuleType) -> str:
    """Return the end of a builder's help: its rule, its licence, the counts stated in the paper, and an example."""
    own_data = getattr(builder, "OWN_DATA", "")
    source = "" if getattr(builder, "EMBEDDED", False) else f" --{own_data} raw" if own_data else " --source raw"
    source = f" {builder.USAGE}" if hasattr(builder, "USAGE") else source
    allowed = (
        "images, masks and labels" if builder.REDISTRIBUTE else "masks and labels only; users also need the source"
    )
    lines = [
        "how samples are made:",
        *(f"  {line}" for line in builder.RULE.splitlines()),
        "",
        f"licence: {licence_of(builder)}{' (see above)' * (builder.LICENSE == 'other')}; may be published: {allowed}",
        "",
        *([f"paper: {counted(builder.PAPER_COUNTS)}", ""] if builder.PAPER_COUNTS else []),
        "example:",
        f"  saliency-bench build {name}{source} --out {name}",
    ]
    return "\n".join(lines)


def licence_of(builder: ModuleType) -> str:
    """Return a dataset's licence. For the user's own data, return a note that --license sets the licence."""
    return "set by --license" if getattr(builder, "OWN_DATA", "") else builder.LICENSE


def counted(paper: dict) -> str:
    """Format the counts stated in a paper, such as "5,000 samples; label: man 2,500"."""
    plain = [f"{value:,} {key}" for key, value in paper.items() if isinstance(value, int)]
    classes = [
        f"{key}: " + ", ".join(f"{name} {count:,}" for name, count in value.items())
        for key, value in paper.items()
        if isinstance(value, dict)
    ]
    return "; ".join([", ".join(plain), *classes])


def add_option(parser: argparse._ActionsContainer, key: str, default: object, text: str) -> None:
    """Add an option for one of the builder's settings."""
    flag = "--" + key.replace("_", "-")
    if isinstance(default, bool):
        action = argparse.BooleanOptionalAction if default else "store_true"
        parser.add_argument(flag, dest=key, action=action, default=default, help=text)
        return
    if isinstance(default, tuple):
        text += "" if "(default: " in text else " (default: none)"
        parser.add_argument(flag, dest=key, nargs="+", default=default, metavar="TEXT", help=text)
        return
    kind = type(default) if isinstance(default, int | float) else str
    metavar = "N" if kind is int else "X" if kind is float else "TEXT"
    if default != "":  # for other defaults, the help text describes them
        text += f" (default: {default})"
    parser.add_argument(flag, dest=key, type=kind, default=default, metavar=metavar, help=text)


def help_of(builder: ModuleType, key: str) -> str:
    """Return the description of an option from the docstring of `samples`."""
    return options.meanings(builder.samples.__doc__ or "").get(key, "").removesuffix(".").replace("%", "%%")


def summary(build_report: dict, out: Path) -> str:
    """Return the build report as a few lines of text."""
    counts, paper = build_report["counts"], build_report["paper_counts"]
    in_paper = {kind: f" (paper: {paper[kind]:,})" if kind in paper else "" for kind in ("samples", "masks")}
    in_paper["test"] = f" (paper: {paper['test']:,})" if "test" in paper else ""
    parts = build_report["splits"].items()
    splits = ", ".join(f"{split} {part['num_examples']:,}{in_paper.get(split, '')}" for split, part in parts)
    reasons = Counter((entry["what"], entry["reason"]) for entry in build_report["left_out"])
    lines = [
        f"{build_report['dataset']} (version {build_report['version']}) is in {out}",
        f"  samples   {counts['samples']:,}{in_paper['samples']}",
        f"  masks     {counts['masks']:,}{in_paper['masks']}",
        f"  splits    {splits}",
    ]
    lines += [
        f"  left out  {count:,} {kind}{'s' * (count > 1)}: {reason}" for (kind, reason), count in reasons.most_common()
    ]
    duplicates = build_report["near_duplicates"]
    lines += [f"  alike     {len(duplicates):,} near-duplicates across splits, listed in build_report.json"] * bool(
        duplicates
    )
    lines += remarks(build_report["remarks"])
    if not build_report["redistribute_images"]:
        lines.append("  licence   these images may not be redistributed")
    return "\n".join([*lines, "next:", f"  {next_command(build_report, out)}"])


def remarks(listed: list[dict], most: int = 5) -> list[str]:
    """Return lines for the first `most` remarks. Identical remarks are combined into one line."""
    ids: dict[str, list[str]] = {}
    for remark in listed:
        ids.setdefault(remark["text"], []).append(remark["id"])
    shown = [
        f"  remark    {image_ids[0]}{f' and {len(image_ids) - 1:,} more' * (len(image_ids) > 1)}: {text}"
        for text, image_ids in ids.items()
    ]
    return [*shown[:most], *[f"            and {len(shown) - most} more in build_report.json"] * (len(shown) > most)]


def next_command(build_report: dict, out: Path) -> str:
    """Return the next command to try. It trains a model on the dataset or runs explainers on the dataset."""
    dataset, model = shlex.quote(str(out)), "microsoft/resnet-18"
    if {"train", "validation", "test"} <= set(build_report["splits"]):
        to = shlex.quote(f"models/resnet-18-{out.name}")
        return f"saliency-bench train --dataset {dataset} --model {model} --out {to}"
    split, to = list(build_report["splits"])[-1], shlex.quote(f"runs/{out.name}")
    return f"saliency-bench run --dataset {dataset} --split {split} --model {model} --target predicted --out {to}"


if __name__ == "__main__":
    from saliency_bench.cli import main as command

    sys.exit(command(["build", *sys.argv[1:]]))
