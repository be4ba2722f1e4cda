"""What `submit` and `push results` have in common: the plan is shown, then carried out."""

import json
from argparse import Namespace
from pathlib import Path


def propose(args: Namespace, run: Path) -> None:
    from saliency_bench.leaderboard.submit import plan

    more = {name: value for name in ("link", "with_maps") if (value := getattr(args, name, None))}
    found = plan(run, namespace=args.namespace, private=args.private, note=args.note, dry_run=args.dry_run, **more)
    if not args.json:
        print("\n".join(found.lines()), flush=True)
    url = None if args.dry_run else found.publish()
    if args.json:
        print(json.dumps(found.as_dict() | {"dry_run": args.dry_run}, indent=2))
    elif args.dry_run:
        print("dry run: nothing was sent")
    elif url:
        print(f"submitted: {url}")
