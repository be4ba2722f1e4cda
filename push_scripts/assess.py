"""Let people rate anonymous saliency maps: several maps per image, with the same questions for each map.

example:
  saliency-bench assess serve runs/first --store study.db
  saliency-bench assess serve runs/first --store study.db --with-masks
  saliency-bench assess results --store study.db --out assess
  saliency-bench assess export --store study.db --out ratings.csv

Until you press Ctrl-C, `serve` shows a page at http://127.0.0.1:7860 with the maps of up to five explainers, in a
random order for each person and image. The run must have been computed with --keep-maps. --with-masks adds the mask of
the dataset as one more map. Each answer is stored immediately, and the same command resumes the study. `results` prints
the mean rating of each explainer with an interval, the agreement between the raters, and a table of the raters.
`export` writes all ratings as a table.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from saliency_bench.push_scripts import _people, _shared

SECTION = "people"


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    _people.arguments(parser)
    new = parser.add_argument_group("serve: settings of a new study")
    new.add_argument("--explainers", nargs="+", metavar="NAME", help="two to five explainers of the run (default: all)")
    new.add_argument(
        "--questions",
        metavar="FILE",
        help="YAML file with the scale and the questions (default: three built-in questions)",
    )
    new.add_argument("--with-masks", action="store_true", help="also show the masks of the dataset as maps to rate")
    new.add_argument("--images", type=int, metavar="N", help="images to rate (default: all)")
    new.add_argument("--raters", type=int, default=3, metavar="N", help="people per image (default: 3)")
    new.add_argument(
        "--per-person", type=int, default=20, metavar="N", help="maximum number of images per person (default: 20)"
    )
    new.add_argument("--checks", type=int, default=1, metavar="N",
                     help="number of attention checks: images shown with the map of a different image "
                          "(default: 1)")  # fmt: skip
    new.add_argument("--seed", type=int, default=0, metavar="N", help="seed for all random choices (default: 0)")
    _people.result_arguments(parser)
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Serve the page of a rating study, or perform another action on its store."""
    _people.run(args, "assess", serve)


def serve(args: Namespace) -> None:
    """Serve the page until it is stopped."""
    from saliency_bench.spaces.assess.app import create_app
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.assess.protocol import KIND, Assess, configuration
    from saliency_bench.studies.assess.questions import read_questions
    from saliency_bench.studies.database import check_text
    from saliency_bench.studies.run_images import run_folder, run_images

    questions = read_questions(args.questions)
    folder, run = run_folder(args.run)
    images = run_images(folder, args.explainers or (), args.dataset, with_masks=args.with_masks)
    numbers: dict[str, Any] = {name: getattr(args, name) for name in ("raters", "per_person", "checks")}
    lease, introduction = _people.lease_hours(args), _people.introduction(args)
    settings = configuration(images, questions, limit=args.images, seed=args.seed, **numbers)
    name = check_text("--name", args.name or f"{KIND}, {run}")
    _people.check_address(args)
    sync = _people.restored(args, serving=True)
    study = Store(args.store).study(KIND, name, dataset=images.dataset, configuration=settings, seed=args.seed)
    completion = _people.completion(args)
    app = create_app(Assess(study, images, lease), completion=completion, introduction=introduction)
    _people.serve(app, args, sync, study)
