"""Estimate the time and memory of the full run, and suggest the three commands to run next."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.maps.default_explainer import fitting as default_explainer
from saliency_bench.recipes.choosing.candidates import costs
from saliency_bench.recipes.doctor.checks import Check
from saliency_bench.recipes.doctor.examine import ALIGNMENT, BASELINES, Examined
from saliency_bench.recipes.doctor.maps import MapReport
from saliency_bench.spec import RunSpec
from saliency_bench.utils.devices import peak_memory

WITH_MASKS = (*ALIGNMENT[:2], "saliency_insertion:steps=16")
WITHOUT_MASKS = ("saliency_insertion:steps=16", "saliency_deletion:steps=16")
MINUTES = 10  # time limit of the first run
FEWEST = 16  # minimum number of images in the first run
DIFFERENCE = 0.02
FIRST, SECOND = "runs/first", "choices/first"


def check_cost(examined: Examined, report: MapReport, has_masks: bool) -> tuple[Check, int]:
    """Return (check of time and memory, number of images for the first run).

    The passes that metrics need are counted as in the plan of a suite.
    """
    data, count = examined.data, examined.data.count
    names = run_explainers(examined, report)
    chosen = [item for item in report.fitting if item.name in names]
    metrics = [as_metric(text) for text in (WITH_MASKS if has_masks else WITHOUT_MASKS)]
    _, scoring = costs(chosen, metrics, max(examined.images.shape[2:]))
    seconds = {item.candidate.name: item.seconds for item in report.tried}
    per_image = sum(seconds.get(name, 0.0) for name in names) + examined.seconds_per_pass * (1 + sum(scoring.values()))
    limit = min(count, max(FEWEST, int(60 * MINUTES / per_image)))
    memory = peak_memory(examined.model.classifier.device)
    shown = sorted(seconds.items(), key=lambda item: item[1])
    listed = ", ".join(f"{name} {_time(value)}" for name, value in shown)
    text = (
        f"all {count} images with {', '.join(names)} and {len(metrics)} metrics take about {_time(count * per_image)}"
        f"; time per map: {listed}"
    )
    if memory is not None:
        text += f"; `doctor` needed {memory / 2**30:.1f} GiB of memory with batches of {data.spec.batch_size} images"
    values = {"seconds_per_image": seconds, "seconds_per_pass": examined.seconds_per_pass, "images": count,
              "seconds_of_run": count * per_image, "memory_bytes": memory}  # fmt: skip
    return Check("time and memory", "ok", text, values=values), limit


def run_explainers(examined: Examined, report: MapReport) -> list[str]:
    """Return the explainers for the first run: the default, integrated gradients (if suitable), and the baselines."""
    fitting = {item.name for item in report.fitting}
    default, _ = default_explainer(examined.model.classifier, examined.images[:1])
    wanted = dict.fromkeys([default, "integrated_gradients", *reversed(BASELINES)])
    return [name for name in wanted if name in fitting]


def next_commands(spec: RunSpec, explainers: Sequence[str], limit: int, has_masks: bool) -> list[str]:
    """Return commands for a run, a power analysis and a choice, or Python calls if the settings contain Python objects.

    Args:
        spec: Settings with which `doctor` was called.
        explainers: Explainers for the run.
        limit: Number of images for the run.
        has_masks: Whether metrics that need masks can be included.
    """
    run, choice = _new(FIRST), _new(SECOND)
    metrics = WITH_MASKS if has_masks else WITHOUT_MASKS
    first = spec.model_copy(update={"explainers": tuple(explainers), "metrics": metrics, "out": run, "limit": limit})
    second = spec.model_copy(update={"out": choice})
    usual = {name for name, value in spec if value == RunSpec.model_fields[name].default} - {"limit"}
    chosen = usual | {"explainers", "metrics"} | ({"limit"} if spec.limit is None else set())
    if spec.needs_python:
        return [
            first.call("run", usual),
            f"sb.power({run!r}, difference={DIFFERENCE})",
            second.call("choose", chosen),
        ]
    return [
        first.command("run", usual),
        f"saliency-bench power --run {run} --difference {DIFFERENCE}",
        second.command("choose", chosen),
    ]


def _new(path: str) -> str:
    """Return the path. If it already exists, return a similar path that does not."""
    number = 1
    while Path(path if number == 1 else f"{path}-{number}").exists():
        number += 1
    return path if number == 1 else f"{path}-{number}"


def _time(seconds: float) -> str:
    """Format a time with its unit, for example as 0.03 s, 12 s, 4 min or 2.5 h."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
