"""Collect hand-drawn masks: serve a page on which annotators draw the region that justifies the class.

example:
  saliency-bench annotate --dataset photos --store study.db
  saliency-bench annotate --dataset photos --store study.db --reviewer
  saliency-bench annotate --dataset photos --store study.db --report
  saliency-bench annotate --dataset photos --store study.db --export masks

The first example serves the page at http://127.0.0.1:7860 until you press Ctrl-C. Everyone who opens the page becomes
an annotator. Each answer is stored immediately, and the same command resumes the study. The store is a file, or a
database at postgresql://USER@HOST/NAME.
"""

import json
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from dataclasses import replace
from pathlib import Path
from typing import Any

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _people, _shared
from saliency_bench.utils.messages import complain, counted

SECTION = "people"
RIGHT = 0.5  # minimum IoU with a honeypot for a correct answer in the table of payments
MOST_NAMED = 20  # maximum number of images named in messages about images that cannot be shown


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--dataset", required=True, metavar="NAME", help="dataset to annotate")
    parser.add_argument("--split", default="test", metavar="NAME", help="split of the dataset (default: test)")
    _people.store_arguments(parser)
    parser.add_argument("--name", metavar="TEXT", help="name of the study (default: dataset and split)")
    _study_options(parser.add_argument_group("a new study"))
    serving = parser.add_argument_group("the page")
    _people.page_arguments(serving)
    serving.add_argument("--assist", action="store_true",
                         help="divide the image into regions that can be marked with a click")  # fmt: skip
    serving.add_argument("--segment", nargs="*", metavar="FILE",
                         help="propose a region from the annotator's strokes with GrabCut, or with a network of the "
                              "Segment Anything family, given as two ONNX files (encoder and decoder)")  # fmt: skip
    serving.add_argument("--reviewer", action="store_true", help="also print the link for a new reviewer")
    results = parser.add_argument_group("results (instead of serving the page)")
    results.add_argument("--report", action="store_true", help="show progress, agreement and honeypots")
    results.add_argument(
        "--payments", metavar="FILE", help="write each person's answers, times and checks to a CSV or Parquet file"
    )
    results.add_argument("--parameters", metavar="FILE", help="write the parameters of the links that people opened")
    results.add_argument("--erase", metavar="FILE", help="copy the store, leaving out the people in --exclude")
    results.add_argument("--export", metavar="DIR", help="write masks and their consensus into a new folder")
    results.add_argument("--import", dest="imported", metavar="PATH",
                         help="add masks that --person drew in another program")  # fmt: skip
    results.add_argument("--format", choices=("png", "coco", "label-studio", "cvat"), default="png",
                         help="file format of --export and --import (default: png)")  # fmt: skip
    results.add_argument("--person", metavar="NAME", help="pseudonym of the person who drew the imported masks")
    results.add_argument("--label", default="", metavar="NAME",
                         help="import the regions with this label (default: the class of the image)")  # fmt: skip
    results.add_argument("--rule", default="half", metavar="RULE",
                         help="for --export: consensus rule: half, majority or staple (default: half)")  # fmt: skip
    results.add_argument("--people", nargs="+", default=(), metavar="NAME", help="use only the answers of these people")
    results.add_argument("--exclude", nargs="+", default=(), metavar="NAME", help="people to leave out")
    results.add_argument("--accepted", action="store_true", help="use only answers that a reviewer has accepted")
    results.add_argument("--honeypot-iou", type=float, default=0.0, metavar="X",
                         help="leave out people whose mean IoU on the honeypots is below this value")  # fmt: skip
    results.add_argument("--without-people", action="store_true", help="for --export: leave out the pseudonyms")
    _shared.output(parser)


def _study_options(group: _ArgumentGroup) -> None:
    """Add options whose defaults come from `saliency_bench.studies.annotating` or the existing study."""
    group.add_argument("--annotators", type=int, metavar="N", help="number of people per image (default: 3)")
    group.add_argument("--per-person", type=int, metavar="N", help="maximum number of images per person (default: all)")
    group.add_argument("--only-missing", action="store_true", default=None, help="include only images without a mask")
    group.add_argument("--honeypots", type=int, metavar="N",
                       help="number of images with a known mask, shown to everyone (default: 0)")  # fmt: skip
    group.add_argument("--honeypot-every", type=int, metavar="N", help="show a honeypot every N images (default: 10)")
    group.add_argument("--grow", action="store_true",
                       help="in an existing study, allow larger --annotators or --per-person, or more "
                            "images")  # fmt: skip
    group.add_argument("--reviewers", type=int, metavar="N",
                       help="number of people who must accept a mask (default: 1)")  # fmt: skip
    group.add_argument("--protocol", choices=("p0",),
                       help="settings of a paper; p0 (Saliency-Bench): --annotators 5 --reviewers 2")  # fmt: skip
    group.add_argument("--practice", type=int, metavar="N",
                       help="number of practice images with feedback, before the real images (default: 0)")  # fmt: skip
    group.add_argument("--practice-iou", type=float, metavar="X",
                       help="IoU required on each practice image within three attempts (default: 0.5)")  # fmt: skip
    _shared.setting(group, "mask_values")
    group.add_argument("--seed", type=int, metavar="N", help="seed for the order of images (default: 0)")


def main(args: Namespace) -> int:
    """Serve the page of an annotation study, or perform another action on its store."""
    if args.erase:
        args.out = args.erase
        _people.erase(args)
        return 0
    if bool(args.imported) != bool(args.person):
        raise UserError("--import PATH and --person NAME require each other; use both or neither")
    if args.label and not args.imported:
        raise UserError("--label NAME selects imported regions; add --import PATH, or remove --label")
    introduction = _people.introduction(args)
    serving = _is_serving(args)
    if serving:
        _people.check_address(args)
    sync = _people.restored(args, serving=serving)
    segmenter = _segmenter(args.segment) if serving else None
    annotating, imported = opened(args)
    if args.report:
        _show_report(annotating, args)
    elif args.export:
        _export(annotating, args)
    elif args.imported:
        _import(annotating, imported, args)
    elif args.payments or args.parameters:
        _write_tables(annotating, args)
    else:
        serve(annotating, args, introduction, sync, segmenter)
    return 0


def opened(args: Namespace) -> tuple[Any, Any]:
    """Open or create the study that the arguments describe, and return (study, masks to import).

    All arguments are checked first, so an invalid command does not create a store.
    """
    from saliency_bench.data.fingerprints import fingerprint
    from saliency_bench.data.loading import find
    from saliency_bench.studies.annotating import DEFAULTS, PROTOCOLS, check_settings, new_configuration, open_study
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.exporting import read_masks
    from saliency_bench.studies.images import StudyImages
    from saliency_bench.utils.mask_values import spelled, words_of

    lease = _people.lease_hours(args)
    given: dict[str, Any] = dict(PROTOCOLS.get(args.protocol, {}))
    given = given | {name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None}
    if args.mask_values:
        given["foreground"] = spelled(" ".join(words_of(args.mask_values)))
    check_settings(given)
    must_exist = args.grow or not (_is_serving(args) or args.imported)
    store = _people.existing_store(args.store, must_exist=must_exist)
    source = find(args.dataset)
    rows, split = source.load_usual(args.split)
    images, dataset = StudyImages(rows), fingerprint(rows)
    imported = None
    if args.imported:
        imported = read_masks(images, Path(args.imported), args.format, args.person, args.label)
    name = _study_name(args, store, f"{source.text}, {split}", dataset, must_exist)
    if store is None:
        new_configuration(images, given)
        store = Store(args.store)
    annotating = open_study(store, name, images, dataset, growing=args.grow, **given)
    return replace(annotating, lease_hours=lease), imported


def _is_serving(args: Namespace) -> bool:
    return not (args.report or args.export or args.imported or args.payments or args.parameters)


def _study_name(args: Namespace, store: Any, usual: str, dataset: str, must_exist: bool) -> str:
    """Return the name of the study to use.

    This is --name, the default name, or, if there is only one study of the same images (wherever the images are
    stored), that study's name.

    Args:
        args: Arguments of the command.
        store: Store, or None if it does not exist yet.
        usual: Default name of a study.
        dataset: Fingerprint of the images.
        must_exist: Whether the study must exist.

    Raises:
        UserError: There is no such study, or there are several studies to choose from.
    """
    from saliency_bench.studies.annotating import KIND
    from saliency_bench.studies.database import check_text
    from saliency_bench.studies.growing import revised

    name = check_text("--name", args.name) if args.name else usual
    if store is None or store.get(name) is not None:
        return name
    same = [] if args.name else [study for study in store.all() if study.kind == KIND]
    same = [study.name for study in same if revised(study).dataset == dataset]
    if len(same) == 1:
        complain(f"using the study '{same[0]}', which contains the same images; set --name to use a different study")
        return same[0]
    if must_exist or same:
        return store.find(
            None if same else name, KIND
        ).name  # raises UserError, because there is no such study or there are several
    return name


def _choice(args: Namespace) -> Any:
    from saliency_bench.studies.annotating import AnswerChoice

    return AnswerChoice(args.people, args.exclude, args.accepted, args.honeypot_iou)


def _show_report(annotating: Any, args: Namespace) -> None:
    from saliency_bench.studies.annotation_report import annotation_report, report_rows

    report = annotation_report(annotating, _choice(args))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _shared.show_rows(report_rows(report))


def _export(annotating: Any, args: Namespace) -> None:
    from saliency_bench.studies.exporting import export

    out, choice = Path(args.export), _choice(args)
    count = export(annotating, out, args.format, people=not args.without_people, rule=args.rule, choice=choice)
    pairs = sum(len(answers) == 2 for answers in annotating.counted(choice).values())
    if pairs and args.rule != "staple":
        complain(f"{pairs} of {count} images have masks from two people; with --rule {args.rule} their consensus is "
                 "the "
                 f"{'union' if args.rule == 'half' else 'intersection'} of both masks")  # fmt: skip
    facts = {"images": count, "folder": args.export, "images of two people": pairs}
    _tell(args, facts, f"the masks of {count} images are in {args.export}")


def _write_tables(annotating: Any, args: Namespace) -> None:
    """Write the tables of payments and of link parameters.

    An answer to a honeypot counts as correct if its IoU with the known mask is at least `RIGHT`.
    """
    checks = {person: [iou >= RIGHT for iou in ious] for person, ious in annotating.honeypot_scores().items()}
    for kind, path in (("payments", args.payments), ("parameters", args.parameters)):
        if path:
            _people.write_table(annotating.study, kind, Path(path), checks, args)


def _import(annotating: Any, imported: Any, args: Namespace) -> None:
    """Store masks that were drawn in another program."""
    from saliency_bench.studies.exporting import store_masks

    store_masks(annotating, imported)
    count, strange, selection = len(imported.masks), imported.strange, imported.selection
    if strange:
        complain(f"the dataset contains no image for {counted(len(strange), 'name')}, such as {strange[0]}; ids in the "
                 f"dataset look like {annotating.images.units[0]}")  # fmt: skip
    for name, why in list(selection.left_out.items())[:MOST_NAMED]:
        complain(f"image {name} is left out: {why}")
    if len(selection.left_out) > MOST_NAMED:
        complain(f"{len(selection.left_out) - MOST_NAMED} more images are left out")
    facts = {"images": count, "unknown": strange, "left out": selection.left_out, "regions": selection.counts(),
             "ignored": dict(selection.passed)}  # fmt: skip
    _tell(args, facts, f"masks of {count} images are stored for {args.person}\n{selection.line()}")


def _tell(args: Namespace, facts: dict[str, Any], text: str) -> None:
    if args.json:
        print(json.dumps(facts))
    elif not args.quiet:
        print(text)


def _segmenter(files: list[str] | None) -> Any:
    """Return the segmenter for strokes that --segment selects, or None if the option is not set.

    Raises:
        UserError: A library is not installed, or a file contains no network.
    """
    from saliency_bench.studies.segment_anything import SegmentAnything
    from saliency_bench.studies.strokes import GrabCut

    if files is None:
        return None
    if len(files) not in (0, 2):
        raise UserError(
            f"--segment got {len(files)} files; pass two ONNX files (the encoder and the decoder), or no file"
        )
    return SegmentAnything(*files) if files else GrabCut()


def serve(annotating: Any, args: Namespace, introduction: Any = None, sync: Any = None, segmenter: Any = None) -> None:
    """Serve the page until it is stopped."""
    from saliency_bench.spaces.annotate.app import create_app

    unshown = annotating.images.prepare(progress=not (args.quiet or args.json))
    for unit, problem in list(unshown.items())[:MOST_NAMED]:
        complain(f"image {unit} cannot be shown and is left out: {problem}")
    if len(unshown) > MOST_NAMED:
        complain(f"{len(unshown) - MOST_NAMED} more images cannot be shown and are left out")

    completion = _people.completion(args)
    app = create_app(
        annotating, assist=args.assist, segmenter=segmenter, completion=completion, introduction=introduction
    )
    _people.serve(app, args, sync, annotating.study, "annotate", args.reviewer)
