"""Compare the time that three explainers and two metrics take on the demo's images with the time of Captum and Quantus.

example:
  python benchmarks/end_to_end.py

The comparison uses 32 images of 64 pixels and a small ResNet with random weights. The explainers are Grad-CAM,
integrated gradients with 50 steps, and occlusion with windows of 8 pixels and a stride of 4. The metrics are the
pointing game, and deletion in steps of one row of pixels, which Quantus calls pixel flipping. Both sides receive
images, labels and masks in memory, classify once per step, and compute a score per image, explainer and metric. They
alternate, so that other load affects both equally. The result is the ratio of the CPU seconds on one thread: the median
over the rounds, and the quartiles.
"""

import argparse
import statistics
import warnings
from time import process_time

import numpy as np
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

import saliency_bench as sb
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.classifiers.layers import cam_layer
from saliency_bench.compute.scoring.perturbation import Curves

EXPLAINERS = ("gradcam", "integrated_gradients:steps=50", "occlusion:window=8,stride=4")
ASKED, SIDE = 0.45, 64

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--images", type=int, default=32, metavar="N", help="number of images (default: 32)")
parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (default: 3)")


class Bare(nn.Module):
    """The caller's model, from normalised images to logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs).logits


def main() -> None:
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1] * 4}
    config = ResNetConfig(**sizes, layer_type="basic", num_labels=8)
    model = ResNetForImageClassification(config).eval()
    classifier = sb.load_classifier(model, mean=(0.5,) * 3, std=(0.25,) * 3, device="cpu")
    images, labels = torch.rand(args.images, 3, SIDE, SIDE), torch.arange(args.images) % 8
    masks = np.zeros((args.images, SIDE, SIDE), bool)
    masks[:, 16:48, 16:48] = True
    given = classifier, images, labels, masks
    works = {"ours": lambda: ours(*given), "theirs": lambda: theirs(*given)}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-1, args.rounds):  # the first round is a warm-up
        for name, work in works.items():
            begun = process_time()
            work()
            seconds[name] += [process_time() - begun] if turn >= 0 else []
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    for name, taken in seconds.items():
        print(f"{name:<8} {statistics.median(taken):6.2f} s")
    print(f"ratio    {middle:6.2f} ({low:.2f}-{high:.2f})   required: at most {ASKED:.2f}")


def ours(classifier, images, labels, masks) -> None:
    target = sb.targets.one_hot(labels, 8)
    for text in EXPLAINERS:
        maps = sb.load_explainer(text)(classifier, images, target)
        load_metric("saliency_pointing_game")(maps, masks)
        load_metric("saliency_deletion")(Curves(classifier, images, target, maps))


def theirs(classifier, images, labels, masks) -> None:
    import captum.attr as captum
    import quantus

    model, inputs = Bare(classifier.model).eval(), (images - classifier.mean) / classifier.std
    layer = classifier.module_named(cam_layer(classifier, images[:1]))
    coarse = captum.LayerGradCam(model, layer).attribute(inputs, target=labels, relu_attributions=True)
    path = {"n_steps": 50, "internal_batch_size": len(inputs)}
    windows = {"sliding_window_shapes": (3, 8, 8), "strides": (3, 4, 4), "baselines": 0}
    maps = [
        captum.LayerAttribution.interpolate(coarse, (SIDE, SIDE), "bilinear").sum(1),
        captum.IntegratedGradients(model).attribute(inputs, target=labels, **path).sum(1),
        captum.Occlusion(model).attribute(inputs, target=labels, **windows).sum(1),
    ]
    given = {"model": model, "x_batch": inputs.numpy(), "y_batch": labels.numpy(), "device": "cpu"}
    given["s_batch"] = masks[:, None]
    for own in maps:
        given["a_batch"] = own.detach()[:, None].numpy()
        quantus.PointingGame(disable_warnings=True)(**given)
        quantus.PixelFlipping(features_in_step=SIDE, perturb_baseline="black", disable_warnings=True)(**given)


if __name__ == "__main__":
    main()
