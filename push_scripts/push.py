"""Publish a dataset, a metric, a model, results or an app on the Hub.

example:
  saliency-bench push dataset pet-xai --dry-run
  saliency-bench push dataset my-data --with-images cc-by-4.0 --hide-masks test
  saliency-bench push metric saliency_miou --namespace YOUR-NAME
  saliency-bench push model models/resnet-18-pet-xai --license apache-2.0
  saliency-bench push results runs/pet
  saliency-bench push space leaderboard --namespace YOUR-NAME
  saliency-bench push results suites    # all runs of a suite at once
  saliency-bench push all built --dry-run

Log in with `hf auth login`, or set HF_TOKEN. The plan is shown before any file is sent, and only changed files are
sent. If the images of a dataset may not be redistributed, only its annotations are published. Results are submitted as
a pull request on NAMESPACE/results under CC-BY-4.0, as with `saliency-bench submit`.

`push all FOLDER` is for the owner of a namespace. It publishes the datasets and models below FOLDER, all metrics, the
results repository, and the apps. Models are published with the scores of their runs, and require --license.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _results, _shared

if TYPE_CHECKING:
    from saliency_bench.hub.upload import Published
    from saliency_bench.hub.upload_plan import Publication

SECTION = "publish"
KEPT = "uploaded files", ""  # what is kept when the command is stopped
# Options for a single kind: {kind: {attribute: flag}}
OWN = {
    "dataset": {"with_images": "--with-images", "eval_yaml": "--eval-yaml", "hide_masks": "--hide-masks"},
    "model": {"results": "--results", "eval_results": "--eval-results", "license": "--license"},
    "results": {"note": "--note"},
}


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", choices=sorted(KINDS), help="type of item to publish")
    parser.add_argument(
        "item",
        metavar="FOLDER|NAME",
        help="folder of a built dataset, a model, a run or a suite, or the name of a metric or app",
    )
    _shared.namespace(parser)
    parser.add_argument(
        "--name", help="name of the repository (default: the name of the dataset, metric, app or folder)"
    )
    parser.add_argument("--private", action="store_true", help="make the repository private if it does not exist yet")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and send nothing")
    groups = {kind: parser.add_argument_group(f"for a {kind}" if kind != "results" else f"for {kind}") for kind in OWN}
    groups["dataset"].add_argument(
        "--with-images", metavar="LICENCE",
        help="licence under which to publish images that may otherwise not be redistributed",
    )  # fmt: skip
    groups["dataset"].add_argument(
        "--eval-yaml", action="store_true",
        help="add eval.yaml, so that the Hub lists scores of models on the dataset's page (the Hub may reject it)",
    )  # fmt: skip
    groups["dataset"].add_argument(
        "--hide-masks", metavar="SPLIT",
        help="publish the masks of SPLIT only in the private repository NAME-masks; a board's owner uses them to score "
        "maps",
    )  # fmt: skip
    groups["model"].add_argument("--license", metavar="LICENCE", help="licence of the weights, such as apache-2.0")
    groups["model"].add_argument(
        "--results", metavar="RUN", help="folder of a run with this model, for the tables of its card"
    )
    groups["model"].add_argument(
        "--eval-results",
        action="store_true",
        help="add .eval_results/*.yaml, so that the dataset's page lists the scores",
    )
    groups["results"].add_argument("--note", default="", help="short note for readers of the leaderboard")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Publish an item on the Hub and print the result."""
    for kind, flags in OWN.items():
        given = [flag for attribute, flag in flags.items() if getattr(args, attribute)]
        if args.kind == "all":  # --license applies to the models of `push all`
            given = [flag for flag in given if flag != "--license"]
        if given and kind != args.kind:
            raise UserError(f"{given[0]} is an option of `push {kind}`, not of `push {args.kind}`; remove {given[0]}")
    KINDS[args.kind](args)


def dataset(args: Namespace) -> None:
    """Publish a dataset."""
    from saliency_bench.data.build_report import read_report
    from saliency_bench.publishing.datasets import dataset_publication
    from saliency_bench.publishing.own_data import is_own_data, note_published

    with TemporaryDirectory(prefix="saliency-bench-") as workspace:
        publication = dataset_publication(
            args.item, args.namespace, Path(workspace), args.name, args.with_images, args.eval_yaml, args.hide_masks
        )
        if is_own := is_own_data(read_report(Path(args.item))["dataset"]):
            _check_masks(args, publication.repo)
        kept = _published_masks(args, publication) if args.hide_masks else None
        done = _published(args, publication)
    is_seen = args.hide_masks or not done.plan.private
    if is_own and is_seen and not args.dry_run:
        note_published(Path(args.item), publication.repo, args.hide_masks)
    if args.json:
        print(json.dumps(done.as_dict() | ({"masks": kept.as_dict()} if kept else {}), indent=2))


def _check_masks(args: Namespace, repo: str) -> None:
    """Raise UserError if masks to hide are already public, or if masks to publish are hidden in another repository."""
    from saliency_bench.hub.client import default_api, token_of
    from saliency_bench.hub.failures import is_network_error, refuse
    from saliency_bench.publishing.datasets import check_hidden_nowhere, check_never_shown

    api = default_api()
    try:
        if args.hide_masks:
            check_never_shown(repo, args.hide_masks, api)
        if token_of(api) is not None and not args.private:
            check_hidden_nowhere(args.item, repo, args.hide_masks, api)
    except UserError:
        raise
    except Exception as error:
        if not (args.dry_run and is_network_error(error)):
            refuse(error, repo, token_of(api))


def _published_masks(args: Namespace, publication: "Publication") -> "Published":
    """Upload the hidden masks of a dataset to a private repository.

    The masks are uploaded before the dataset, so every published dataset has its masks.
    """
    from saliency_bench.publishing.datasets import masks_publication

    with TemporaryDirectory(prefix="saliency-bench-") as workspace:
        masks = masks_publication(publication, args.item, args.hide_masks, Path(workspace))
        return _published(args, masks, private=True)


def metric(args: Namespace) -> None:
    """Publish a metric."""
    from saliency_bench.publishing.metrics import metric_publication

    if args.name:
        raise UserError("the repository of a metric always has the metric's name; remove --name")
    _publish(args, metric_publication(args.item, args.namespace))


def model(args: Namespace) -> None:
    """Publish a model."""
    from saliency_bench.publishing.models import model_publication

    _publish(
        args,
        model_publication(args.item, args.namespace, args.name, args.license, args.results, args.eval_results),
    )


def results(args: Namespace) -> None:
    """Submit results to a board."""
    if args.name:
        raise UserError("results are sent to NAMESPACE/results; use --namespace instead of --name")
    _results.propose(args, Path(args.item))


def space(args: Namespace) -> None:
    """Publish an app."""
    from saliency_bench.publishing.spaces import space_publication

    _publish(args, space_publication(args.item, args.namespace, args.name))


def everything(args: Namespace) -> None:
    """Publish everything in a folder."""
    from saliency_bench.push_scripts._all import left_out, publications
    from saliency_bench.utils.messages import complain

    if args.name:
        raise UserError("`push all` publishes many repositories, so it does not accept --name; remove the option")
    with TemporaryDirectory(prefix="saliency-bench-") as workspace:
        for line in left_out(Path(args.item), args.namespace):
            complain(line)
        # All errors are found before any file is sent, except those in models, because models link to datasets that
        # must be published first.
        about = Path(args.item), args.namespace
        list(publications(*about, Path(mkdtemp(dir=workspace)), args.license))
        all_of_it = publications(*about, Path(mkdtemp(dir=workspace)), args.license)
        done = [_published(args, publication) for publication in all_of_it]
    if args.json:
        print(json.dumps([published.as_dict() for published in done], indent=2))


KINDS: dict[str, Callable[[Namespace], None]] = {
    "all": everything,
    "dataset": dataset,
    "metric": metric,
    "model": model,
    "results": results,
    "space": space,
}


def _publish(args: Namespace, publication) -> None:
    done = _published(args, publication)
    if args.json:
        print(json.dumps(done.as_dict(), indent=2))


def _published(args: Namespace, publication: "Publication", *, private: bool = False) -> "Published":
    """Publish an item and return the result. The result is also printed, unless JSON was requested."""
    from huggingface_hub.utils import disable_progress_bars

    from saliency_bench.hub.upload import publish

    if args.json:
        disable_progress_bars()
    say = (lambda line: None) if args.json else (lambda line: print(line, flush=True))
    done = publish(publication, private=private or args.private, dry_run=args.dry_run, say=say)
    if not args.json:
        print(done, flush=True)
    return done
