"""What `submit` and `push results` have in common."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--namespace", default="saliency-bench", help="whose results (default: saliency-bench)")
    parser.add_argument("--note", default="", help="a few words for the readers of the board")
    parser.add_argument("--private", action="store_true", help="if the repository is made now: for you alone")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent, and send nothing")


def main(args: Namespace, run: Path) -> None:
    from saliency_bench.submitting import plan

    found = plan(run, namespace=args.namespace, private=args.private, note=args.note, dry_run=args.dry_run)
    if not args.json:
        print("\n".join(found.lines()), flush=True)
    url = None if args.dry_run else found.publish()
    if args.json:
        print(json.dumps(found.as_dict() | {"dry_run": args.dry_run}, indent=2))
    elif args.dry_run:
        print("dry run: nothing was sent")
    elif url:
        print(f"submitted: {url}")
