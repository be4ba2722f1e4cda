"""Compare the time of each explainer with the passes that its definition needs, and with other libraries.

examples:
  python benchmarks/explainers.py
  python benchmarks/explainers.py --explainers rise:masks=200 scorecam:layer=layer2 gradcam --rounds 5
  python benchmarks/explainers.py --model transformers:vit --batch 2
  python benchmarks/explainers.py --device cuda --precision bf16 --batch 16
  python benchmarks/explainers.py --together --explainers gradient gradcam smoothgrad occlusion

The floor is the time of plain passes: the caller's model processes as many images as the explainer sends through the
network (counted by the classifier). If an explainer needs no gradients, the passes are forward only. For all other
explainers, they are forward and backward, and the backward pass ends at the images or at the layer, depending on the
gradients that the explainer requests. In the backward pass of cebp and tattr, each convolution and linear layer is
applied once more (W+ a) or four times more (both signs, forward and backward). The floors of cebp and tattr include
these computations. This package, the floor and the other libraries alternate in one process, so that other load affects
all equally. With one thread, seconds are CPU seconds of the process. A ratio is the median over the rounds, with
quartiles in brackets. The last column is the largest growth of the process's memory while explaining.

On the CPU, occlusion is also compared with full passes ("whole" in the column for other libraries).

With --together, all explainers run one after the other, and their total time is compared with the sum of their floors.
The same sum is compared with a run of these explainers and one metric (`saliency_miou`), from the network in memory to
the report.

On a CPU with bf16 instructions, explainers that use only outputs have a second row. It is for a classifier from
`load_classifier(..., precision="bf16")` (`run --precision bf16`) and is compared with the same floor in float32. The
row also shows the error of the maps: the largest difference from the float32 maps as a share of their range, and the
correlation between the two. If an image needs more than 200 passes, a single image is used.

On a GPU, this package, the floor and the other libraries compute in the precision set by `--precision`. The floor uses
the faster memory layout: channels-last, except in float32 and for gradients. Libraries that do not support the
precision are omitted, there is no second row for bf16, seconds are wall-clock seconds with synchronisation, and memory
is GPU memory.
"""

import argparse
import os
import statistics
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from math import ceil
from operator import truediv
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
from PIL import Image as Pictures

from saliency_bench import list_explainers, load_classifier, load_explainer, registry, run, targets
from saliency_bench.compute.classifiers import windows
from saliency_bench.compute.classifiers.classifier import DTYPES, PRECISIONS
from saliency_bench.compute.classifiers.layers import cam_layer, detached_at
from saliency_bench.compute.classifiers.passes import pictures_per_pass
from saliency_bench.errors import UserError
from saliency_bench.utils.devices import peak_memory
from saliency_bench.utils.untouched import untouched

# With these options, a round takes only seconds. The ratios do not depend on them.
SHORT = {
    "gradient_shap": {"samples": 10},
    "integrated_gradients": {"steps": 10},
    "lime": {"samples": 100},
    "occlusion": {"window": 56, "stride": 28},
    "rise": {"masks": 100},
    "smoothgrad": {"samples": 10},
}
# Required ratio of the time to the floor.
ASKED, ASKED_OF_OUTPUTS, ASKED_OF_BF16, ASKED_OF_GPU, ASKED_TOGETHER = 1.03, 0.80, 0.50, 1.15, 1.05
MANY = 200
AGAIN = {"cebp": 1, "tattr": 4}

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--model", default="resnet18", help="torchvision name (default: resnet18) or transformers:TYPE, "
                    "with random weights; or any model that load_classifier accepts")  # fmt: skip
parser.add_argument("--explainers", nargs="+", metavar="NAME", help="default: all, with few samples, steps or masks")
parser.add_argument("--together", action="store_true", help="measure all explainers as one task, and as one run")
parser.add_argument("--size", type=int, default=224, metavar="N", help="side of the images (default: 224)")
parser.add_argument("--batch", type=int, default=4, metavar="N", help="number of images (default: 4)")
parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (default: 3)")
parser.add_argument("--threads", type=int, default=1, metavar="N", help="number of threads (default: 1)")
parser.add_argument("--device", default="cpu", help="device (default: cpu)")
parser.add_argument("--precision", default="fp32", choices=PRECISIONS, help="precision on a GPU (default: fp32)")
parser.add_argument("--compile", action="store_true", help="compile explainers that use only outputs")


def main() -> None:
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"  # only the other libraries use these
    classifier = classifier_of(args.model, args.size, args.device).computing(args.precision, None, args.compile)
    images = torch.rand(args.batch, 3, args.size, args.size, generator=torch.Generator().manual_seed(0))
    images = images.to(classifier.device)
    with torch.no_grad():
        classes = classifier.eval()(images[:1]).shape[1]
    labels = torch.arange(args.batch, device=images.device) % classes
    print(f"{args.model}, {args.batch} images of {args.size}, {args.threads} threads, {args.rounds} rounds")
    arithmetic = (
        f"{processor()}, {'with' if has_bf16() else 'no'} bf16" if args.device == "cpu" else classifier.arithmetic
    )
    name = torch.cuda.get_device_name(images.device) if images.is_cuda else f"cpu, {os.cpu_count()} cores"
    print(f"{name}, {arithmetic}; torch {torch.__version__}\n")
    print(f"{'explainer':<40} {'needs':<8} {'passes':>6} {'seconds':>8} {'/ floor':>16} {'limit':>5}  / others, MB")
    names = args.explainers or list_explainers()
    if args.together:
        print(together(names, classifier, images, labels, classes, args))
    for text in names if not args.together else ():
        try:
            print(measured(text, classifier, images, labels, classes, args), flush=True)
        except UserError as error:
            print(f"{text:<40} {error}")


def has_bf16() -> bool:
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def processor() -> str:
    """Return the name of the processor, if the system reports it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")


def classifier_of(name: str, size: int, device: str):
    import torchvision

    torch.manual_seed(0)
    if name in torchvision.models.list_models():
        model = torchvision.models.get_model(name, weights=None)
        return load_classifier(model, mean=(0.5,) * 3, std=(0.25,) * 3, device=device)
    if name.startswith("transformers:"):
        from transformers import AutoConfig, AutoModelForImageClassification

        config = AutoConfig.for_model(name.partition(":")[2], image_size=size, num_labels=1000)
        model = AutoModelForImageClassification.from_config(config, attn_implementation="eager")
        return load_classifier(model, mean=(0.5,) * 3, std=(0.25,) * 3, device=device)
    return load_classifier(name, device=device)


def needs_of(explainer, classifier, images, labels, classes: int) -> tuple[int, str, str | None]:
    """Return (passes for one image, target of autograd, layer). The target is "images", "layer" or "outputs"."""
    found: set[str] = set()
    first = images[:1], targets.one_hot(labels[:1], classes).to(images.device)
    explainer(classifier, *first)  # not counted, because it is computed once per network
    before = classifier.passes
    with watched(found, images):
        explainer(classifier, *first)
    kind = "images" if "images" in found else "layer" if found else "outputs"
    layer = dict(explainer.options).get("layer") or layer_of(explainer.name, classifier, images)
    return classifier.passes - before, kind, layer


def together(names: list[str], classifier, images, labels, classes: int, args) -> str:
    """Return two rows that compare all explainers with the sum of their floors: as calls, and as a run."""
    explainers = [with_few(text) for text in names]
    needs = [needs_of(explainer, classifier, images, labels, classes) for explainer in explainers]
    target = targets.one_hot(labels, classes)
    rows = picture_rows(images, labels, classes)

    def calls() -> None:
        for explainer in explainers:
            explainer(classifier, images, target)

    def in_a_run() -> None:
        with TemporaryDirectory() as folder:
            run(dataset=rows, model=classifier, explainers=explainers, metrics=["saliency_miou"],
                batch_size=len(images), out=Path(folder, "run"), progress=False)  # fmt: skip

    def floors() -> None:
        for explainer, (passes, kind, layer) in zip(explainers, needs, strict=True):
            floor(classifier, images, target, passes * len(images), kind, layer, AGAIN.get(explainer.name, 0))

    seconds = taken({"by calls": calls, "as a run": in_a_run, "floor": floors}, args)
    passes = sum(passes for passes, *_ in needs) * len(images)
    return "\n".join(
        f"{f'{len(explainers)} explainers together, {name}':<40} {'all':<8} {passes:>6} "
        f"{statistics.median(seconds[name]):>8.2f} {ratio(seconds[name], seconds['floor']):>16} {ASKED_TOGETHER:>5.2f}"
        for name in ("by calls", "as a run")
    )


def picture_rows(images, labels, classes: int):
    """Return rows of a dataset with these images."""
    from datasets import ClassLabel, Dataset, Features, Image

    pictures = [Pictures.fromarray((255 * image.permute(1, 2, 0)).byte().numpy()) for image in images]
    masks = [Pictures.new("L", (image.shape[2], image.shape[1]), 255) for image in images]
    features = Features({"image": Image(), "mask": Image(), "label": ClassLabel(names=list(map(str, range(classes))))})
    return Dataset.from_dict({"image": pictures, "mask": masks, "label": labels.tolist()}, features)


def measured(text: str, classifier, images, labels, classes: int, args) -> str:
    """Return a row of the table, or two rows for an explainer that uses only outputs."""
    explainer = with_few(text)
    passes, kind, layer = needs_of(explainer, classifier, images, labels, classes)
    if passes > MANY and args.device == "cpu":
        images, labels = images[:1], labels[:1]
    passes *= len(images)
    target = targets.one_hot(labels, classes).to(images.device)
    only_outputs = "outputs" in explainer.declaration.needs

    def ours(precision: str = args.precision) -> torch.Tensor:
        classifier.computing(precision, None)
        try:
            return explainer(classifier, images, target)
        finally:
            classifier.computing(args.precision, None)

    grown = growth(ours, images.device)
    works: dict[str, Callable] = {"ours": ours}
    if passes:
        again = AGAIN.get(explainer.name, 0)
        faster = kind == "outputs" and args.device != "cpu" and args.precision != "fp32"
        plainly = classifier.variant(channels_last=True) if faster else classifier
        works["floor"] = lambda: floor(plainly, images, target, passes, kind, layer, again)
        works |= {"bf16": lambda: ours("bf16")} if only_outputs and args.device == "cpu" and has_bf16() else {}
        works |= {"whole": lambda: whole(ours)} if explainer.name == "occlusion" and args.device == "cpu" else {}
    if args.precision not in DTYPES:
        works |= others(explainer.name, classifier, images, labels, dict(explainer.options), passes, layer)
    seconds = taken(works, args)

    def row(name: str, title: str, asked: float, rest: str) -> str:
        middle = statistics.median(seconds[name])
        against = f"{ratio(seconds[name], seconds['floor']):>16} {asked:>5.2f}" if passes else f"{'-':>16} {'-':>5}"
        return f"{title:<40} {kind if passes else '-':<8} {passes:>6} {middle:>8.3f} {against}  {rest}"

    asked = ASKED_OF_GPU if args.device != "cpu" else ASKED_OF_OUTPUTS if only_outputs else ASKED
    peers = [f"{ratio(seconds['ours'], seconds[name])} {name}" for name in works if name not in OWN]
    rows = [row("ours", str(explainer), asked, f"{', '.join(peers) or '-'}, {grown}")]
    if "bf16" in works:
        rows.append(row("bf16", "  bf16", ASKED_OF_BF16, error_of(ours("bf16"), ours())))
    return "\n".join(rows)


OWN = ("ours", "floor", "bf16")


def whole(work: Callable) -> None:
    """Call `work` while occlusion uses full passes."""
    before, windows.SMALLEST = windows.SMALLEST, 2**62
    try:
        work()
    finally:
        windows.SMALLEST = before


def ratio(some: list[float], others: list[float]) -> str:
    """Return the median of the rounds' ratios, and their quartiles."""
    ratios = list(map(truediv, some, others))
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def error_of(maps: torch.Tensor, exact: torch.Tensor) -> str:
    largest = (maps - exact).abs().amax() / (exact.amax() - exact.amin())
    return (
        f"off by {largest:.1%}, correlation {torch.corrcoef(torch.stack([maps.flatten(), exact.flatten()]))[0, 1]:.4f}"
    )


def with_few(text: str):
    """Return an explainer in command-line syntax. If it has no options, an option for few samples is added."""
    name = text.partition(":")[0]
    known = dict(load_explainer(text).options)
    few = {} if ":" in text else {key: value for key, value in SHORT.get(name, {}).items() if key in known}
    return load_explainer(text, **few)


def taken(works: dict[str, Callable], args) -> dict[str, list[float]]:
    """Return the seconds that each function takes in each round. The functions alternate.

    Short functions are repeated until they take half a second.
    """
    clock = process_time if args.threads == 1 and args.device == "cpu" else perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in works}
    repeats = dict.fromkeys(works, 1)
    for turn in range(-1, args.rounds):  # the first round only warms up
        for name, work in works.items():
            begun = clock()
            for _ in range(repeats[name]):
                work()
            if args.device != "cpu":
                torch.cuda.synchronize()
            each = (clock() - begun) / repeats[name]
            repeats[name] = ceil(0.5 / each) if turn < 0 else repeats[name]
            seconds[name] += [each] if turn >= 0 else []
    return seconds


def floor(classifier, images, target, passes: int, kind: str, layer: str | None, again: int) -> None:
    """Run plain passes for `passes` images.

    On a GPU, and on passes without gradients, batches have the explainers' default size. Otherwise, each batch contains
    all images to explain.
    """
    fills = kind == "outputs" or images.device.type == "cuda"
    step = pictures_per_pass(images) if fills else len(images)
    for start in range(0, passes, step):
        places = torch.arange(start, min(start + step, passes)) % len(images)
        plain(classifier, images[places], target[places], kind, layer, again)


def plain(classifier, images, target, kind: str, layer: str | None, again: int) -> None:
    with untouched(classifier):
        if kind == "outputs":
            with torch.no_grad():
                classifier(images)
        elif kind == "layer" and layer is not None:
            with detached_at(classifier.module_named(layer)) as outputs, applied_again(classifier, again):
                total = targets.score(classifier(images), target).sum()
            torch.autograd.grad(total, outputs[-1])
        else:
            images = images.clone().requires_grad_()
            with applied_again(classifier, again):
                total = targets.score(classifier(images), target).sum()
            torch.autograd.grad(total, images)


@contextmanager
def applied_again(classifier, times: int):
    """Apply each convolution and linear layer that needs gradients this many additional times."""

    def compute(module, inputs, output):
        if inputs[0].requires_grad:
            with torch.no_grad():
                for _ in range(times):
                    module.forward(*inputs)

    kinds = (torch.nn.Conv2d, torch.nn.Linear) if times else ()
    handles = [module.register_forward_hook(compute) for module in classifier.modules() if isinstance(module, kinds)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def layer_of(name: str, classifier, images) -> str | None:
    """Return the layer that an explainer uses, if any: cebp's own layer, otherwise the last convolutional block."""
    try:
        if name == "cebp":
            return registry.load("explainers", name).excitation_layer(classifier, images[:1])
        return cam_layer(classifier, images[:1])
    except UserError:
        return None


@contextmanager
def watched(found: set[str], images):
    """Record whether autograd computes gradients of images (n, 3, H, W), or only of outputs of layers."""
    grad, backward = torch.autograd.grad, torch.Tensor.backward

    def watching(outputs, inputs, *rest, **options):
        wanted = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        found.update("images" if one.shape[1:] == images.shape[1:] else "layer" for one in wanted)
        return grad(outputs, inputs, *rest, **options)

    def watching_backward(tensor, *rest, **options):
        found.add("images")
        return backward(tensor, *rest, **options)

    torch.autograd.grad, torch.Tensor.backward = watching, watching_backward
    try:
        yield
    finally:
        torch.autograd.grad, torch.Tensor.backward = grad, backward


def growth(work: Callable, device: torch.device) -> str:
    """Return the largest growth of the memory of the process or GPU in megabytes, if the system reports it."""
    status = Path("/proc/self/status")
    if device.type == "cuda":
        start = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return f"{(peak_memory(device) - start) / 2**20:.0f}"

    def kilobytes(field: str) -> int:
        return int(status.read_text().partition(f"{field}:")[2].split()[0])

    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        start = kilobytes("VmRSS")
        work()
        return f"{(kilobytes('VmHWM') - start) / 1024:.0f}"
    except (OSError, IndexError):
        return "-"


def others(
    name: str, classifier, images, labels, options: dict, passes: int, layer_name: str | None
) -> dict[str, Callable]:
    """Return {library: function for the same task}.

    Each function normalises the images itself and runs the same number of plain passes.
    """
    import captum.attr as captum
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = Bare(classifier)
    draws = max(1, passes // len(images))
    layer = classifier.module_named(layer_name) if layer_name else None

    def normalised() -> torch.Tensor:
        return (images - classifier.mean) / classifier.std

    def attribute(method, **settings) -> Callable:
        return lambda: method.attribute(normalised().requires_grad_(), target=labels, **settings)

    def cam(kind) -> Callable:
        def work() -> None:
            with kind(model, [layer]) as method:
                method.batch_size = 16
                method(normalised(), [ClassifierOutputTarget(int(label)) for label in labels])

        return work

    def superpixels() -> None:
        found = registry.load("explainers", "lime").superpixels(images, None, 200.0, 0.2)
        method = captum.Lime(model, interpretable_model=_ridge())
        for image, label, mask in zip(normalised(), labels, found, strict=True):
            method.attribute(image[None], target=int(label), feature_mask=mask[None, None], n_samples=draws,
                             perturbations_per_eval=16)  # fmt: skip

    window, stride = options.get("window"), options.get("stride")
    windows = {"sliding_window_shapes": (3, window, window), "strides": (3, stride, stride)}
    smooth = {"nt_samples": draws, "nt_samples_batch_size": 1, "stdevs": 0.15}
    random = {"n_samples": draws, "stdevs": 0.0, "baselines": torch.zeros_like(images)}
    noise = partial(captum.NoiseTunnel, captum.Saliency(model))
    known: dict[str, Callable[[], dict[str, Callable]]] = {
        "gradient": lambda: {"captum": attribute(captum.Saliency(model), abs=False)},
        "input_x_gradient": lambda: {"captum": attribute(captum.InputXGradient(model))},
        "guided_backprop": lambda: {"captum": attribute(captum.GuidedBackprop(model))},
        "integrated_gradients": lambda: {
            "captum": attribute(captum.IntegratedGradients(model), n_steps=draws, internal_batch_size=len(images))
        },
        "smoothgrad": lambda: {"captum": attribute(noise(), nt_type="smoothgrad", **smooth)},
        "gradient_shap": lambda: {"captum": attribute(captum.GradientShap(model), **random)},
        "occlusion": lambda: {"captum": attribute(captum.Occlusion(model), baselines=0, **windows)} if window else {},
        "lime": lambda: {"captum": superpixels},
    }
    if layer is not None:
        known |= {
            "gradcam": lambda: {
                "captum": attribute(captum.LayerGradCam(model, layer)),
                "grad-cam": cam(pytorch_grad_cam.GradCAM),
            },
            "gradcam_plus_plus": lambda: {"grad-cam": cam(pytorch_grad_cam.GradCAMPlusPlus)},
            "scorecam": lambda: {"grad-cam": cam(pytorch_grad_cam.ScoreCAM)},
        }
    return known[name]() if name in known else {}


def _ridge():
    from captum._utils.models.linear_model import SkLearnRidge

    return SkLearnRidge(alpha=1.0)


class Bare(torch.nn.Module):
    """The caller's model, from normalised images to logits."""

    def __init__(self, classifier):
        super().__init__()
        self.model = classifier.model

    def forward(self, inputs):
        output = self.model(inputs)
        return getattr(output, "logits", output)


main()
