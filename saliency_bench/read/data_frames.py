"""`sb.check` and `sb.power`, which return the output of the commands of the same names as data frames."""

from typing import TYPE_CHECKING, Any

from saliency_bench.errors import UserError
from saliency_bench.read.analysis import power as needed_for
from saliency_bench.read.finished_run import run_of

if TYPE_CHECKING:
    import pandas as pd


def check(run: Any, *requirements: str, against: Any = None, strict: bool = False) -> "pd.DataFrame":
    """Check requirements of a run jointly, like `saliency-bench check`, and return a row per requirement.

        sb.check("runs/new", "gradcam:saliency_miou>=0.3", "gradcam:saliency_miou>random")["passed"].all()

    Args:
        run: Result of `run`, or its folder.
        *requirements: "EXPLAINER:METRIC>=NUMBER" (or <=), or "EXPLAINER:METRIC>EXPLAINER" (or <).
        against: An earlier run; a requirement also fails if its explainer was significantly better in that run.
        strict: Whether an undecided requirement fails.

    Raises:
        UserError: No requirement is given, a requirement is invalid, a score does not exist or has too few samples, or
            the runs cannot be compared.
    """
    return run_of(run).check(*requirements, against=against, strict=strict)


def power(
    run: Any = None, *, difference: float, spread: float | None = None, power: float = needed_for.POWER,
    single: bool = False, cluster_size: int = 1, correlation: float = 0.0,
) -> "pd.DataFrame":  # fmt: skip
    """Return the number of images needed to distinguish two explainers, like `saliency-bench power`.

        sb.power("runs/pilot", difference=0.02)[["metric", "explainers", "images"]]

    Args:
        run: Result of `run`, or its folder; the spread is computed from its paired differences.
        difference: Smallest difference that matters.
        spread: Standard deviation of the per-image differences between two explainers, to be given instead of `run`.
        power: Probability of finding the difference.
        single: Whether only one pair is tested, instead of all pairs of a metric together.
        cluster_size: Images per cluster, such as the slices of a patient; used only with `spread`.
        correlation: Correlation of the differences within a cluster; used only with `spread`.

    Returns:
        A row for each metric and pair of explainers, starting with the pairs that need the most images. The columns
        include `spread`, `clusters` and `images`; `clusters` and `images` are missing if more than ten million clusters
        are needed. For a run, `observed` is the difference in the run, and `seen` is the number of clusters in the run.

    Raises:
        UserError: Both or neither of `run` and `spread` are given, a number is out of range, or no two explainers of
            the run share enough samples.
    """
    import pandas as pd

    if (run is None) == (spread is None):
        raise UserError("power needs either a run or a spread (the standard deviation of the per-image differences)")
    if run is not None:
        rows = needed_for.of_run(run_of(run), difference, power, not single)
    else:
        rows = [needed_for.assumed(spread or 0.0, difference, power, cluster_size, correlation)]
    return pd.DataFrame([row.as_dict() for row in rows]).astype({"clusters": "Int64", "images": "Int64"})
