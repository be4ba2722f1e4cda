"""Measure the time per map of every metric as a function, through its `evaluate` module, and in Quantus.

example:
  python benchmarks/metrics.py

Maps are smooth random fields of 224 x 224 pixels without ties; masks are discs. Metrics that run the classifier are
measured with a trivial classifier, so that only the metric and the creation of perturbed images are timed. The last
column shows the number of images that are classified. Metrics that compute additional maps are measured only as
functions, with the gradient of a small network in both packages. saliency_crowd_auc is measured per judgement and
compared with scikit-learn's `auc`. Times are CPU seconds on one thread, as medians over the rounds, so other load has
little effect.
"""

import argparse
import atexit
import os
import shutil
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time

os.environ |= {"OMP_NUM_THREADS": "1", "HF_EVALUATE_OFFLINE": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}

import numpy as np
import torch
from evaluate.loading import evaluation_module_factory, import_main_class, init_dynamic_modules
from torch import nn
from torchvision.transforms.functional import gaussian_blur

from saliency_bench import load_classifier, registry
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.read.statistics.exposures import EXPOSURES, SHOWN
from saliency_bench.target_weights import one_hot

ASKED_THRESHOLD, ASKED_RANKED, ASKED_SHELL = 1.0, 5.0, 0.5  # milliseconds per map
RANKED = ("saliency_average_precision",)  # metrics that sort pixels, as all metrics do with threshold=mask_area
AT_MASK_AREA = ("saliency_miou", "saliency_precision", "saliency_recall")
QUANTUS: dict[str, tuple[str, dict]] = {  # {metric of this package: metric of Quantus with the same purpose}
    "saliency_pointing_game": ("PointingGame", {}),
    "saliency_recall:threshold=mask_area": ("RelevanceRankAccuracy", {}),
    "saliency_iosr": ("TopKIntersection", {"k": 10000}),
    "saliency_energy": ("RelevanceMassAccuracy", {}),
    "saliency_average_precision": ("AUC", {}),
    "saliency_deletion": ("PixelFlipping", {}),
    "saliency_single_deletion": ("FaithfulnessEstimate", {}),
    "saliency_road": ("noisy_linear_imputation", {}),  # ROAD of Quantus fails with three channels
}
OF_MODEL = ("PixelFlipping", "FaithfulnessEstimate")  # metrics of Quantus that change pixels
PATCHES = 16  # number of patches for saliency_single_deletion
FURTHER: dict[str, tuple[str, dict]] = {  # metrics that compute further maps; MPRT of Quantus fails with its own ssim
    "saliency_randomisation:form=spearman": ("MPRT", {"similarity_func": "correlation_spearman"}),
    "saliency_randomisation:form=complexity": ("EfficientMPRT", {}),
    "saliency_max_sensitivity": ("MaxSensitivity", {"nr_samples": 10}),
}

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--maps", type=int, default=64, metavar="N", help="number of maps per call (default: 64)")
parser.add_argument("--size", type=int, default=224, metavar="N", help="side in pixels (default: 224)")
parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of calls of each type (default: 3)")
args = parser.parse_args()
torch.set_num_threads(1)
warnings.simplefilter("ignore")


class Nothing(nn.Module):
    """Trivial classifier with two logits that depend on a single pixel."""

    def forward(self, images):
        return images[:, :2, 0, 0]


torch.manual_seed(0)
maps = gaussian_blur(torch.randn(args.maps, args.size, args.size), [31, 31], [8.0, 8.0]).numpy()
rows, columns = np.mgrid[: args.size, : args.size] / args.size
centres = np.random.default_rng(0).random((args.maps, 2))
masks = np.stack([(rows - y) ** 2 + (columns - x) ** 2 < 0.06 for y, x in centres])
work = Path(tempfile.mkdtemp(prefix="metrics-"))
atexit.register(shutil.rmtree, work, ignore_errors=True)
modules = init_dynamic_modules("evaluate_metrics_benchmark", str(work / "modules"))


def milliseconds(call: Callable[[], object], count: int) -> float:
    """Return the milliseconds per map as the median over the rounds, after a warm-up call."""
    call()
    times = []
    for _ in range(args.rounds):
        begun = process_time()
        call()
        times.append(process_time() - begun)
    return 1000 * statistics.median(times) / count


def shell(name: str):
    found = evaluation_module_factory(str(registry.files("metrics")[name].parent), dynamic_modules_path=modules)
    return import_main_class(found.module_path)(cache_dir=str(work / "cache"), hash=found.hash)


def measured(text: str) -> tuple[float, float, float | None, int]:
    """Return milliseconds per map of the function, the `evaluate` module and Quantus, and classified images per map."""
    metric = load_metric(text)
    chosen = {key: value for key, value in metric.options if f"{key}=" in text}
    module, pictures = shell(metric.name), 0
    if metric.inputs == ("maps", "masks"):
        count = args.maps
        ours = milliseconds(lambda: metric(maps, masks), count)
        outside = milliseconds(lambda: module.compute(predictions=maps, references=masks, **chosen), count)
    else:
        count = min(2, args.maps)
        classifier, images = load_classifier(Nothing(), mean=0.5, std=1), torch.rand(count, 3, args.size, args.size)
        labels = [one_hot([0] * count, 2).numpy().astype(bool)] if "labels" in metric.inputs else []

        def function():
            nonlocal pictures
            curves = Curves(classifier, images, one_hot([0] * count, 2), maps[:count])
            metric(curves, *labels)
            pictures = curves.passes // count

        given = {"predictions": maps[:count], "references": [0] * count, "images": images, "classifier": classifier}
        ours = milliseconds(function, count)
        outside = milliseconds(lambda: module.compute(**given, **chosen), count)
    return ours, outside, milliseconds(quantus_call(text, count), count) if text in QUANTUS else None, pictures


def quantus_call(text: str, count: int) -> Callable[[], object]:
    import quantus

    name, options = QUANTUS[text]
    if name == "noisy_linear_imputation":
        return lambda: imputed_by_quantus(count)
    if name in OF_MODEL:
        step = args.size if name == "PixelFlipping" else args.size**2 // PATCHES
        options = {"features_in_step": step, "perturb_baseline": "black"}
    metric = getattr(quantus, name)(disable_warnings=True, abs=False, normalise=False, **options)
    given = {
        "model": Nothing().eval() if name in OF_MODEL else None,
        "x_batch": np.zeros((count, 3, args.size, args.size), np.float32),
        "y_batch": np.zeros(count, int),
        "a_batch": maps[:count, None],
        "s_batch": masks[:count, None],
    }
    return lambda: metric(**given)


def imputed_by_quantus(count: int) -> None:
    """Compute the images that saliency_road imputes, leaving out those with no pixel or all pixels removed."""
    from quantus.functions.perturb_func import noisy_linear_imputation

    for one in maps[:count]:
        order = np.argsort(-one.ravel())
        for exposure in EXPOSURES[1:-1]:
            noisy_linear_imputation(np.zeros((3, args.size, args.size)), order[: int(exposure * one.size)])


def network() -> nn.Module:
    """Return a network with three layers that have weights. Its gradients are used as maps."""
    layers = [nn.Conv2d(3, 4, 7, 8), nn.ReLU(), nn.Conv2d(4, 8, 3, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)]
    made = nn.Sequential(*layers).eval()
    made(torch.zeros(1, 3, args.size, args.size))
    return made


def gradient(classifier, images, target):
    images = images.detach().requires_grad_()
    (found,) = torch.autograd.grad((classifier(images) * target).sum(), images)
    return found.sum(dim=1)


def further(text: str) -> tuple[float, float]:
    """Return the milliseconds per image in this package and in Quantus, including the time for maps."""
    import quantus

    count = min(4, args.maps)
    module, images = network(), torch.rand(count, 3, args.size, args.size)
    classifier = load_classifier(module, mean=0, std=1)
    name, options = FURTHER[text]
    if "similarity_func" in options:
        options = options | {"similarity_func": getattr(quantus.similarity_func, options["similarity_func"])}
        options |= {"return_average_correlation": False, "layer_order": "top_down"}
    theirs = getattr(quantus, name)(disable_warnings=True, display_progressbar=False, **options)

    def explain(model, inputs, targets, **_):
        target = one_hot(torch.as_tensor(targets), 10)
        return gradient(model, torch.as_tensor(inputs, dtype=torch.float32), target).numpy()[:, None]

    given = {"model": module, "x_batch": images.numpy(), "y_batch": np.zeros(count, int), "explain_func": explain}
    ours = milliseconds(lambda: score_samples(text, images, classifier, gradient, target=[0] * count), count)
    return ours, milliseconds(lambda: theirs(**given), count)


def judgements(count: int = 1000) -> tuple[float, float, float]:
    """Return the milliseconds per judgement of saliency_crowd_auc, its `evaluate` module, and scikit-learn."""
    from sklearn.metrics import auc

    metric, module = load_metric("saliency_crowd_auc"), shell("saliency_crowd_auc")
    first = np.random.default_rng(0).choice([*SHOWN, np.nan], count)

    def theirs() -> float:
        return float(np.mean([auc(EXPOSURES, [float(one <= exposure) for exposure in EXPOSURES]) for one in first]))

    assert abs(metric(first).mean() - theirs()) < 1e-12
    ours = milliseconds(lambda: metric(first), count)
    return ours, milliseconds(lambda: module.compute(predictions=first), count), milliseconds(theirs, count)


needed = {"maps", "masks", "curves", "labels"}
names = [metric for metric in map(load_metric, registry.names("metrics")) if set(metric.inputs) <= needed]
texts = [metric.name for metric in names] + [f"{name}:threshold=mask_area" for name in AT_MASK_AREA]
print(f"milliseconds of one processor for a map of {args.size} x {args.size}, medians of {args.rounds} rounds\n")
print(f"{'metric':<40} {'function':>9} {'evaluate':>9} {'adds':>7} {'peer':>9} {'ratio':>7} {'pictures':>9}")
worst = {"a threshold": 0.0, "an order": 0.0, "evaluate": 0.0}
for text in sorted(texts, key=lambda text: ("curves" in load_metric(text).inputs, text)):
    ours, outside, theirs, pictures = measured(text)
    peer = f"{theirs:>9.3f} {theirs / ours:>6.1f}x" if theirs else f"{'':>9} {'':>7}"
    print(f"{text:<40} {ours:>9.3f} {outside:>9.3f} {outside - ours:>7.3f} {peer} {pictures or '':>9}", flush=True)
    if not pictures:
        kind = "an order" if text in RANKED or text.endswith("mask_area") else "a threshold"
        worst[kind], worst["evaluate"] = max(worst[kind], ours), max(worst["evaluate"], outside - ours)
for text in FURTHER:
    ours, theirs = further(text)
    print(f"{text:<40} {ours:>9.3f} {'':>9} {'':>7} {theirs:>9.3f} {theirs / ours:>6.1f}x", flush=True)
ours, outside, theirs = judgements()
peer = f"{theirs:>9.3f} {theirs / ours:>6.1f}x"
print(f"{'saliency_crowd_auc, a judgement':<40} {ours:>9.5f} {outside:>9.5f} {outside - ours:>7.4f} {peer}")
asked = zip(worst.items(), (ASKED_THRESHOLD, ASKED_RANKED, ASKED_SHELL), strict=True)
print("\nat most: " + "; ".join(f"{kind} {value:.3f} (asked: {limit:g})" for (kind, value), limit in asked))
