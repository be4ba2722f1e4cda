r"""Check a run against requirements, as a gate for continuous integration.

example:
  saliency-bench check runs/new --against runs/old \
      --require 'gradcam:saliency_miou>=0.3' 'gradcam:saliency_deletion<=0.2' \
      'rise:masks=100:saliency_miou>=0.2' 'gradcam:saliency_miou>random'

For each requirement, the command prints a line with the interval that decides whether it is met. The exit code is 1 if
an interval is entirely on the wrong side of its bound, or if the paired test shows that an explainer is worse than it
was on the same samples in the run given with --against. The exit code is 2 for any error, and 0 otherwise. If a
requirement names an explainer instead of a number, the difference between the two explainers on the same samples is
tested.

All requirements of one command are tested together (Holm). If all of them are true, the probability that any fails is
about 2.5 %, or 5 % with --against, regardless of their number. A requirement whose interval contains the bound is
undecided and passes, except with --strict. Its line states approximately how many samples would be needed to decide it,
and how large a violation could be detected with the samples of the run. Quote each requirement, because > has a special
meaning in the shell.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared

SECTION = "measure"


def arguments(parser: ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("run", metavar="RUN", help="folder of a run (its --out)")
    parser.add_argument(
        "--require", nargs="+", action="extend", required=True, metavar="RULE",
        help="rules of the form EXPLAINER:METRIC>=NUMBER, EXPLAINER:METRIC<=NUMBER, EXPLAINER:METRIC>EXPLAINER or "
             "EXPLAINER:METRIC<EXPLAINER; options follow the name that they belong to, for example "
             "rise:masks=100:saliency_miou:threshold=0.3>=0.2",
    )  # fmt: skip
    parser.add_argument(
        "--against",
        metavar="OLD_RUN",
        help="earlier run; the check fails if an explainer scores worse in RUN than in OLD_RUN",
    )
    parser.add_argument("--strict", action="store_true", help="also fail if a requirement is undecided")
    _shared.output(parser)


def main(args: Namespace) -> int:
    """Check the run and return the exit code."""
    from saliency_bench.read.analysis.comparison import differing_question
    from saliency_bench.read.analysis.requirements import Requirement, check
    from saliency_bench.read.finished_run import read_run
    from saliency_bench.utils.messages import complain

    requirements = [Requirement.read(text) for text in args.require]
    run, against = read_run(Path(args.run)), read_run(Path(args.against)) if args.against else None
    checked = check(run, requirements, against)
    passed = all(requirement.passes(args.strict) for requirement in checked)
    differing = [] if against is None else differing_question(against, run)
    if args.json:
        content = {"run": args.run, "against": args.against, "strict": args.strict, "passed": passed}
        content |= {"differing_settings": differing}
        print(json.dumps(content | {"requirements": [requirement.as_dict() for requirement in checked]}, indent=2))
        return 0 if passed else 1
    if differing:
        complain(f"{args.against} differs in {', '.join(differing)}")
    for requirement in checked:
        print(requirement.line(args.against))
    return 0 if passed else 1
