"""Show and execute the plan of a submission, for the commands `submit` and `push results`."""

import getpass
import json
import re
import shlex
from argparse import Namespace
from pathlib import Path


def login_name() -> str:
    """Return the user's login name, which identifies the submitter on a local board, or "me" if there is none."""
    try:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", getpass.getuser()).strip("-.")
    except (OSError, KeyError):  # in a container, the user may have no name
        name = ""
    return name or "me"


def propose(args: Namespace, folder: Path) -> None:
    """Show the plan of a submission, and execute it.

    Args:
        args: Arguments of the command.
        folder: Folder of a run, or of a suite whose runs are sent together.
    """
    from saliency_bench.board import submit
    from saliency_bench.read.run_folder import read_summary
    from saliency_bench.read.summary import misfits
    from saliency_bench.utils.messages import complain

    more = {name: value for name in ("link", "with_maps") if (value := getattr(args, name, None))}
    runs, unfinished = submit.runs_in(folder)
    if (folder / "data" / "networks").is_dir() and runs != [folder]:
        complain(
            "these runs use --smoke (synthetic images and small networks) and do not belong on a leaderboard; run "
            "the suite without --smoke to submit its results"
        )
    for path in unfinished:
        complain(f"left out: {path} is not finished")
    to = getattr(args, "to", None)
    plans = [
        submit.plan_for_folder(run, to, args.by or login_name(), note=args.note, **more)
        if to
        else submit.plan(
            run, namespace=args.namespace, private=args.private, note=args.note, dry_run=args.dry_run, **more
        )
        for run in runs
    ]
    submit.check_sizes(plans)
    if not args.json:
        announced = False
        for plan, run in zip(plans, runs, strict=True):
            print("\n".join([*plan.lines(several=announced), *misfits(read_summary(run))]), flush=True)
            announced = announced or not plan.nothing
    url = None if args.dry_run else submit.propose(plans)
    if args.json:
        shown = [plan.as_dict() | {"dry_run": args.dry_run} for plan in plans]
        print(json.dumps(shown[0] if runs == [folder] else shown, indent=2))
    elif args.dry_run:
        print("dry run: nothing was sent")
    elif url and to:
        print(f"submitted; to show the board, run `saliency-bench leaderboard --results {shlex.quote(url)}`")
    elif url:
        print(f"submitted: {url}")
