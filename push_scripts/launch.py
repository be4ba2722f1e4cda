"""Publish everything in a new namespace, and check that other users can load it.

example:
  saliency-bench launch YOUR-NAME --dry-run
  saliency-bench launch YOUR-NAME --license apache-2.0
  saliency-bench launch YOUR-NAME --only pet-xai saliency_miou leaderboard

The steps are:

1. Check the account and all names before anything is sent.
2. Publish datasets, models, metrics, the board (with a list of the datasets and models for its "Overall" page), and the
   apps.
3. Run baselines and a few explainers on each dataset with its classifier. Submit, review, merge and recompute scores.
4. Add the scores to the model cards.
5. Load everything in a process that does not have your token.

If the command is killed or an upload is rejected, run it again: it checks what exists on the Hub and completes the
remaining steps. With --limit, only some of the samples are scored, and the rows have no rank.
"""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from saliency_bench import registry
from saliency_bench.errors import UserError, unknown
from saliency_bench.push_scripts import _all, _first_rows, _native, _shared, _stranger
from saliency_bench.utils.messages import complain, counted

SECTION = "publish"
KEPT = "uploaded files and complete batches of runs", ""  # what is kept when the command is stopped
BOARD = "results"
# Seconds to wait after each repository. Writing one takes about 15 requests, and the Hub allows a free account 1,000
# requests in five minutes.
PACE = 5.0


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("namespace", metavar="NAMESPACE", type=_shared.namespace_name,
                        help="user or organisation on the Hub")  # fmt: skip
    parser.add_argument("--data", metavar="DIR", default="built",
                        help="folder with built datasets and trained models, at any depth (default: built); runs are "
                        "stored in it")  # fmt: skip
    parser.add_argument("--license", metavar="LICENCE", help="licence of the models' weights, such as apache-2.0")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], action="extend",
                        help="publish only these repositories and the board")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the plan and send nothing")
    parser.add_argument("--pace", type=float, metavar="SECONDS", default=PACE,
                        help=f"pause after each repository, because of the Hub's rate limits "
                             f"(default: {PACE:g})")  # fmt: skip
    rows = parser.add_argument_group("for the first rows of the board")
    _shared.setting(rows, "explainers", default=list(_first_rows.EXPLAINERS))
    _shared.setting(rows, "metrics", default=list(_first_rows.METRICS))
    _shared.setting(rows, "limit")
    _shared.setting(rows, "device")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Execute all steps of a launch, or print the plan."""
    if args.pace < 0:
        raise UserError(f"--pace {args.pace:g} is negative; use 0 or more seconds")
    with TemporaryDirectory(prefix="saliency-bench-") as workspace:
        launch = Launch(args, Path(workspace), (lambda line: None) if args.json else partial(print, flush=True))
        launch.plan()
        if not args.dry_run:
            for number, (title, step) in enumerate(STEPS.items(), 1):
                launch.say(f"\n{number} of {len(STEPS)}: {title}")
                step(launch)
    text = _native.requests(args.namespace, [pair.name for pair in launch.pairs])
    if args.json:
        shown = {"dry_run": args.dry_run, "repositories": launch.planned, "checked": launch.checked, "requests": text}
        print(json.dumps(shown, indent=2))
    elif args.dry_run:
        print(f"steps: {'; '.join(STEPS)}\ndry run: nothing was sent")
    else:
        print(f"\n{text}")


@dataclass
class Launch:
    """State shared by all steps of a launch.

    Attributes:
        workspace: Empty folder for temporary files.
        say: Function that prints a line.
        names: Names of all repositories that could be published, except the board's repository.
        planned: Plan of each repository as JSON data.
        checked: Output lines of the final check, which loads everything as another user would.
    """

    args: Namespace
    workspace: Path
    say: Callable[[str], object]
    names: set[str] = field(default_factory=set)
    planned: list[dict[str, Any]] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from saliency_bench.hub.client import default_api

        self.root, self.namespace, self.api = Path(self.args.data), self.args.namespace, default_api()
        self.board = f"{self.namespace}/{BOARD}"

    def patiently(self, action: Callable[[], Any], repo: str = "") -> Any:
        """Call an action, retrying while the Hub is busy. In a dry run, it is called only once."""
        from saliency_bench.hub.patience import PAUSES, patiently

        return patiently(action, repo or self.board, self.api, self.say, () if self.args.dry_run else PAUSES)

    def takes(self, name: str) -> bool:
        """Return whether a repository should be published, and record its name."""
        self.names.add(name)
        return not self.args.only or name in self.args.only

    @cached_property
    def pairs(self) -> list[_first_rows.DatasetModel]:
        """Return the datasets of the core with their classifiers."""
        return [pair for pair in _first_rows.pairs(self.root) if self.takes(pair.name) and self.takes(pair.model.name)]

    # Publications

    def datasets(self) -> Iterable:
        """Return the publications for the datasets."""
        return _all.datasets(self.root, self.namespace, Path(mkdtemp(dir=self.workspace)), self.takes)

    def models(self) -> Iterable:
        """Return the publications for the models, with the scores of existing runs."""
        return _all.models(self.root, self.namespace, self.args.license, self.takes)

    def metrics(self) -> Iterable:
        """Return the publications for the metrics."""
        return _all.metrics(self.namespace, self.takes)

    def boards(self) -> Iterable:
        """Return the publication for the board, with the hashes of the datasets averaged on its "Overall" page."""
        from saliency_bench.board.submit import board_publication
        from saliency_bench.board.view.core import FILE, core_as_yaml

        publication, core = board_publication(self.namespace), self.core()
        return [replace(publication, files=publication.files | ({FILE: core_as_yaml(core)} if core else {}))]

    def apps(self) -> Iterable:
        """Return the publications for the apps."""
        return _all.apps(self.namespace, self.takes)

    def core(self) -> Any:
        """Return the board's core: its existing entries, and the datasets and classifiers that this launch adds."""
        from saliency_bench.board.source import BoardSource
        from saliency_bench.board.view.core import FILE, core_of_board
        from saliency_bench.hub.failures import is_network_error

        before = None
        try:
            if self.api.file_exists(self.board, FILE, repo_type="dataset"):
                before = core_of_board(BoardSource(self.board, api=self.api))
        except Exception as error:
            if not (self.args.dry_run and is_network_error(error)):
                raise
        return _first_rows.core(self.pairs, self.namespace, before)

    # Steps

    def plan(self) -> None:
        """Check the account, all names and all contents, and print the plan. This happens before any file is sent.

        Raises:
            UserError: The account is not allowed to write to a repository, a repository contains unrelated work, or a
                name in --only does not exist.
        """
        from saliency_bench.bound_explainer import load_explainer
        from saliency_bench.hub.upload_plan import plan_if_reachable, upload_plan

        for line in _all.left_out(self.root, self.namespace):
            complain(line)
        for name in self.args.explainers:  # so that a wrong name is reported before the uploads
            load_explainer(name)
        kinds = (self.datasets, self.models, self.metrics, self.boards, self.apps)
        publications = [item for kind in kinds for item in self.patiently(partial(_list, kind))]
        for name in self.args.only:
            if name not in self.names | {BOARD}:
                raise unknown("repository", name, self.names)
        for item in publications:
            if item.kind == "model" and not item.license and not self.args.dry_run:
                raise UserError(
                    f"{item.repo} has no licence; set the licence of its weights, for example --license apache-2.0"
                )
        self._check_account(publications)
        ask = plan_if_reachable if self.args.dry_run else upload_plan
        plans = [self.patiently(partial(ask, item, False, self.api), item.repo) for item in publications]
        self.planned = [plan.as_dict() for plan in plans]
        for line in _plan_lines(plans):
            self.say(line)
        for pair in self.pairs:
            self.say(_row_line(pair, self))
        published = {_name(item) for item in publications if item.kind == "dataset"}
        for name in sorted(published - {BOARD, *(pair.name for pair in self.pairs)}):
            self.say(f"no rows for {name}: none of the models to publish was trained on it")

    def _check_account(self, publications: list) -> None:
        """Raise UserError if the account may not write to a repository. In a dry run, only print the problem."""
        from saliency_bench.hub.client import LOGIN, account, rights, token_of

        if self.args.dry_run:
            self.say(f"account: {rights(self.api, self.board).line}")
            return
        if token_of(self.api) is None:
            raise UserError(LOGIN)
        user = self.patiently(lambda: account(self.api))
        for item in publications:
            if refusal := user.refusal(item.repo):
                raise UserError(f"{refusal}; use your own NAMESPACE, or log in with a token that has write access")
        self.say(f"account: {user.name} may write to {self.namespace}")

    def publish(self, publications: Callable[[], Iterable]) -> None:
        """Publish the requested repositories one by one."""
        from saliency_bench.hub.upload import publish

        def briefly(line: str) -> None:
            if not line.startswith("  "):
                self.say(line)

        for item in self.patiently(partial(_list, publications)):
            done = publish(item, api=self.api, say=briefly)
            self.say(str(done))
            time.sleep(self.args.pace if done.changed else 0)

    def add_rows(self) -> None:
        """Add the first rows to the board, skipping runs and submissions that already exist."""
        settings = {name: getattr(self.args, name) for name in ("explainers", "metrics", "limit", "device")}
        for pair in self.pairs:
            self.say(_row_line(pair, self))
            run = self.patiently(partial(_first_rows.scored, pair, self.namespace, self.root, settings))
            self.patiently(partial(_first_rows.let_in, run, self.namespace, self.api, self.say))
            device = self.args.device
            self.patiently(partial(_first_rows.recompute, pair, self.namespace, device, self.api, self.say))

    def tables(self) -> Iterable:
        """Return the publication for the board's table on the Hub."""
        from saliency_bench.board.hub_table import ROWS, table_of
        from saliency_bench.board.opening import load_results
        from saliency_bench.board.submission_schema import LICENSE
        from saliency_bench.hub.upload_plan import Publication

        board = load_results(self.board)
        return [Publication("dataset", self.board, {ROWS: table_of(board)}, LICENSE)] if board.rows else []

    def check(self) -> None:
        """Check that other users can load every published item."""
        kinds: dict[str, list[str]] = {"dataset": [], "model": [], "space": []}
        for plan in self.planned:
            kinds[plan["kind"]].append(plan["repo"])
        metrics = {f"{self.namespace}/{name}" for name in registry.names("metrics")}
        splits = {f"{self.namespace}/{name}": split for name, split in _first_rows.splits(self.root).items()}
        self.checked = _stranger.check_as_stranger({
            "namespace": self.namespace,
            "datasets": {repo: splits[repo] for repo in kinds["dataset"] if repo != self.board},
            "models": kinds["model"], "metrics": [repo for repo in kinds["space"] if repo in metrics],
            "runs": [str(pair.run_folder(self.root).resolve()) for pair in self.pairs],
        })  # fmt: skip
        for line in self.checked:
            self.say(line)


STEPS: dict[str, Callable[[Launch], None]] = {
    "datasets": lambda launch: launch.publish(launch.datasets),
    "models": lambda launch: launch.publish(launch.models),
    "metrics": lambda launch: launch.publish(launch.metrics),
    "the board and its core": lambda launch: launch.publish(launch.boards),
    "apps": lambda launch: launch.publish(launch.apps),
    "first rows of the board": Launch.add_rows,
    "scores in the model cards": lambda launch: launch.publish(launch.models),
    "the table of the board": lambda launch: launch.publish(launch.tables),
    "the check without your token": Launch.check,
}


def _list(publications: Callable[[], Iterable]) -> list:
    """Return publications as a list, because a generator cannot resume after it has raised an error."""
    return list(publications())


def _name(publication: Any) -> str:
    """Return the name of a repository without its namespace."""
    return publication.repo.partition("/")[2]


def _plan_lines(plans: list) -> list[str]:
    """Return the lines of the plan: one for each repository, one for each overwritten file, and the total."""
    from saliency_bench.hub.upload_plan import size

    lines, total, new = [], 0, 0
    for plan in plans:
        changes = {path: change for path, change in plan.changes.items() if change != "unchanged"}
        sent = sum(plan.publication.bytes(path) for path, change in changes.items() if change != "removed")
        total, new = total + sent, new + (not plan.exists)
        state = "exists" if plan.exists else "new" if plan.compared else "not compared with the Hub"
        licence = f", licence: {plan.publication.license or 'not stated'}"
        done = "nothing to send" if plan.nothing else f"{len(changes)} of {len(plan.changes)} files, {size(sent)}"
        lines.append(f"{plan.publication.kind:<9}{plan.publication.repo}: {state}, {done}{licence}")
        lines += [f"    {change}: {path}" for path, change in changes.items() if change != "new"]
    lines.append(f"in all: {counted(len(plans), 'repository')}, {new} of them new, {size(total)} to send")
    lines.append("the Hub does not state in advance how much an account may store or create per day")
    return lines


def _row_line(pair: _first_rows.DatasetModel, launch: Launch) -> str:
    metrics = _first_rows.metrics_for(pair, launch.args.metrics)
    count = pair.report["splits"][pair.split]["num_examples"]
    used = min(launch.args.limit or count, count)
    partly = "" if used == count else f" of {count}, so these rows have no rank"
    done = "finished" if (pair.run_folder(launch.root) / "summary.json").is_file() else "still to be computed"
    return (f"rows for {pair.name} with {pair.model.name}: {', '.join(launch.args.explainers)} on {', '.join(metrics)} "
            f"for {counted(used, 'sample')}{partly}; run {done}")  # fmt: skip
