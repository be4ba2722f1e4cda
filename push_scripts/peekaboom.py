"""Let people name classes from the top pixels of saliency maps, and compare explainers on the basis of these answers.

example:
  saliency-bench peekaboom serve runs/first --store study.db
  saliency-bench peekaboom results --store study.db --out peekaboom
  saliency-bench peekaboom export --store study.db --out answers.csv
  saliency-bench analyse runs/first --what agreement --answers answers.csv

Until you press Ctrl-C, `serve` shows a page at http://127.0.0.1:7860 with the images and maps of a run. The run must
have been computed with --keep-maps. People see 5 % of the pixels of an image and choose its class from several labels.
After a wrong answer or "I don't know", they see more pixels. Each answer is stored immediately, and the same command
resumes the study. `results` prints the accuracy at each exposure, saliency_crowd_auc, and a table of the participants.
`export` writes the answers in the format that `analyse --what agreement` reads.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from saliency_bench.push_scripts import _people, _shared

SECTION = "people"


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    _people.arguments(parser)
    new = parser.add_argument_group("serve: settings of a new study")
    new.add_argument("--explainers", nargs="+", metavar="NAME", help="explainers of the run (default: all)")
    new.add_argument("--images", type=int, metavar="N", help="images to judge (default: all)")
    new.add_argument("--protocol", choices=("p2",),
                     help="settings of a paper; p2 (Lu et al.): --judgements 10 --pairs 20 --checks 0, so no "
                     "participant is left out")  # fmt: skip
    new.add_argument("--judgements", type=int, metavar="N",
                     help="number of people per image and explainer (default: 10)")  # fmt: skip
    new.add_argument("--pairs", type=int, metavar="N", help="maximum number of images per person (default: 20)")
    new.add_argument("--choices", type=int, metavar="N", help="labels to choose from (default: 4)")
    new.add_argument("--checks", type=int, metavar="N",
                     help="number of images that are shown completely, as attention checks (default: 2)")  # fmt: skip
    new.add_argument("--strike", action="store_true",
                     help="do not let a person choose the same wrong label twice (this option makes guessing "
                          "easier)")  # fmt: skip
    new.add_argument("--fill", choices=("black", "grey"), default="black",
                     help="colour of hidden pixels: black, as in saliency_kae, or grey, which is needed to resume a "
                     "study that an earlier version created (default: black)")  # fmt: skip
    new.add_argument("--seed", type=int, default=0, metavar="N", help="seed for all random choices (default: 0)")
    _people.result_arguments(parser)
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Serve the page of a study, or perform another action on its store."""
    _people.run(args, "peekaboom", serve)


def serve(args: Namespace) -> None:
    """Serve the page until it is stopped."""
    from saliency_bench.spaces.peekaboom.app import create_app
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.database import check_text
    from saliency_bench.studies.peekaboom.protocol import KIND, PROTOCOLS, Peekaboom, configuration
    from saliency_bench.studies.run_images import run_folder, run_images

    folder, run = run_folder(args.run)
    images = run_images(folder, args.explainers or (), args.dataset)
    given = {name: getattr(args, name) for name in ("judgements", "pairs", "choices", "checks", "strike", "fill")}
    numbers: dict[str, Any] = PROTOCOLS.get(args.protocol, {}) | {
        name: value for name, value in given.items() if value is not None
    }
    lease, introduction = _people.lease_hours(args), _people.introduction(args)
    settings = configuration(images, limit=args.images, seed=args.seed, **numbers)
    name = check_text("--name", args.name or f"{KIND}, {run}")
    _people.check_address(args)
    sync = _people.restored(args, serving=True)
    study = Store(args.store).study(KIND, name, dataset=images.dataset, configuration=settings, seed=args.seed)
    completion = _people.completion(args)
    app = create_app(Peekaboom(study, images, lease), completion=completion, introduction=introduction)
    _people.serve(app, args, sync, study)
