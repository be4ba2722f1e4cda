"""Let people draw the region that justifies the class: a page for annotators, with a review.

example:
  saliency-bench annotate --dataset photos --store study.db
  saliency-bench annotate --dataset photos --store study.db --reviewer
  saliency-bench annotate --store study.db --dataset photos --report

The first line serves the page at http://127.0.0.1:7860 until Ctrl-C; who opens it is an annotator. Answers go into the
store, one file, at once; the same command goes on where it stopped. The store may also be postgresql://USER@HOST/NAME.
"""

import json
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from typing import Any

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _shared

SECTION = "people"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dataset", required=True, metavar="NAME", help="dataset to annotate")
    parser.add_argument("--split", default="test", metavar="NAME", help="its split (default: test)")
    parser.add_argument("--store", required=True, metavar="FILE", help="file or URL of the store, made if missing")
    parser.add_argument("--name", metavar="TEXT", help="name of the study (default: the dataset and split)")
    _study_options(parser.add_argument_group("a new study"))
    serving = parser.add_argument_group("the page")
    serving.add_argument("--host", default="127.0.0.1", metavar="HOST",
                         help="address to serve at; 0.0.0.0 for other machines (default: 127.0.0.1)")  # fmt: skip
    serving.add_argument("--port", type=int, default=7860, metavar="N", help="port (default: 7860)")
    serving.add_argument("--assist", action="store_true", help="offer pieces of the image, which a click marks")
    serving.add_argument("--reviewer", action="store_true", help="also print a link for a new reviewer")
    _shared.output(parser)


def _study_options(group: _ArgumentGroup) -> None:
    group.add_argument("--annotators", type=int, default=3, metavar="N", help="people per image (default: 3)")
    group.add_argument("--per-person", type=int, default=0, metavar="N", help="most images of a person (default: all)")
    group.add_argument("--only-missing", action="store_true", help="ask about images without a mask only")
    group.add_argument("--honeypots", type=int, default=0, metavar="N",
                       help="images with a known mask, shown to everybody as a check (default: 0)")  # fmt: skip
    group.add_argument("--honeypot-every", type=int, default=10, metavar="N",
                       help="one among so many images (default: 10)")  # fmt: skip
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of images (default: 0)")


def main(args: Namespace) -> int:
    annotating = opened(args)
    serve(annotating, args)
    return 0


def opened(args: Namespace) -> Any:
    """The study that the arguments name, made if there is none."""
    from saliency_bench.data.fingerprints import fingerprint
    from saliency_bench.data.loading import find
    from saliency_bench.studies.annotating import KIND, Annotating, choose_honeypots, configuration
    from saliency_bench.studies.images import StudyImages
    from saliency_bench.studies.store import Store

    for name, least in (("annotators", 1), ("per_person", 0), ("honeypots", 0), ("honeypot_every", 2)):
        if getattr(args, name) < least:
            raise UserError(f"--{name.replace('_', '-')} is a number from {least}")
    found = find(args.dataset)
    rows, split = found.load_usual(args.split)
    images = StudyImages(rows)
    pots = choose_honeypots(images, args.honeypots, args.seed)
    settings = configuration(args.annotators, pots, args.honeypot_every, args.only_missing, args.per_person)
    name = args.name or f"{found.text}, {split}"
    study = Store(args.store).study(KIND, name, dataset=fingerprint(rows), configuration=settings, seed=args.seed)
    return Annotating(study, images)


def serve(annotating: Any, args: Namespace) -> None:
    import socket

    import uvicorn

    from saliency_bench.spaces.annotate.annotate import create_app

    app = create_app(annotating, assist=args.assist)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((args.host, args.port))
    except OSError as error:
        raise UserError(
            f"port {args.port} of {args.host} cannot be used ({error.strerror}); give another --port"
        ) from None
    address = f"http://{'127.0.0.1' if args.host == '0.0.0.0' else args.host}:{listening.getsockname()[1]}/"
    links = {"annotate": address}
    if args.reviewer:
        links["review"] = f"{address}#key={annotating.study.join(role='reviewer').key}"
    if args.json:
        print(json.dumps(links), flush=True)
    elif not args.quiet:
        print("\n".join(f"{name}: {link}" for name, link in links.items()), flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run([listening])
