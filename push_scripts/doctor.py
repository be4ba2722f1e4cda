"""Check a network and a dataset before a long run, in about two minutes.

example:
  saliency-bench doctor --dataset shapes-xai --model models/resnet-18-shapes
  saliency-bench doctor --dataset ./photos --model "./net.py:make" \\
      --within 60s --json

The command prints a line per check: the order of classes, the preprocessing (BGR, size, mean and scale), the explainers
that support the network, flat maps, the reliability of maps with random draws, the masks, the scores of random and
centred maps, and the time and memory of a full run. It then suggests three commands to run next. The command changes no
files, and it writes a file only with --out.

The result of a check is "ok", "look" (worth a look), "undecided" (too few images or too little time) or "wrong". The
exit code is 1 if a check is "wrong" or, with --strict, "look" or "undecided". The exit code is 2 for any error, and 0
otherwise.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared

SECTION = "start here"
SETTINGS = ("dataset", "model", "prompts", "split", "target", "label_column", "label_map", "groups", "activation",
            "only", "mask_values", "limit", "batch_size", "seed", "precision", "channels_last", "compile",
            "device")  # fmt: skip


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--within", default="2m", metavar="TIME",
                        help="time limit after loading: 90s, 5m, or none (default: 2m)")  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true", help="also fail if the result of a check is 'look' or 'undecided'"
    )
    parser.add_argument("--out", metavar="FILE", help="also write the output of --json to this file")
    _shared.settings(parser, *SETTINGS, batch_size=8)
    _shared.output(parser)


def main(args: Namespace) -> int:
    """Check a network and a dataset before a long run, and return the exit code."""
    from saliency_bench.recipes.doctor.doctor import doctor
    from saliency_bench.utils.files import write_json
    from saliency_bench.utils.storage import check_output_file

    if args.out:
        check_output_file(Path(args.out))
    settings = _shared.given(args, "out", "strict")
    diagnosis = doctor(within=args.within, progress=not args.json, **settings)
    if args.out:
        write_json(Path(args.out), diagnosis.content)
    if args.json:
        print(json.dumps(diagnosis.content, indent=2))
    else:
        _shared.show_rows(diagnosis.rows)
        print("\n".join(["", *diagnosis.lines]))
    failing = ("wrong", "look", "undecided") if args.strict else ("wrong",)
    return 1 if diagnosis.marked(*failing) else 0
