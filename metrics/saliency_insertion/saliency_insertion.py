"""`evaluate` module: insertion score of saliency maps. The metric itself is in score.py; it needs saliency_bench."""

import datasets
import evaluate
import numpy as np

from saliency_bench.evaluate_shell import MapShell
from saliency_bench.maps import read_maps


class SaliencyInsertion(MapShell, evaluate.Metric):
    """Area under the class probability as the top pixels of a saliency map enter a black, mean or blurred reference.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or a torch module (see saliency_bench.load_classifier).
        target: weights (B, K) over the classes, instead of the references (which may then be None).
        batch_size: images in one forward pass (default 16).
        reference: "black" (default), "mean" or "blur". steps: points of the curve less one; default one image row each.
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_insertion": float, higher is better}, in [0, 1] for one class from black or mean.
    """

    CITATION = """@inproceedings{petsiuk2018rise,
  title={RISE: Randomized Input Sampling for Explanation of Black-box Models},
  author={Petsiuk, Vitali and Das, Abir and Saenko, Kate},
  booktitle={British Machine Vision Conference},
  year={2018}
}"""
    URL = "https://arxiv.org/abs/1806.07421"
    LEFT_OUT = "a score that is not a number"

    def read(self, predictions, references):
        maps = read_maps(predictions)
        # With a target of their own, samples need no class.
        labels = np.zeros(len(maps)) if references is None else np.asarray(references).reshape(-1)
        if len(labels) != len(maps) or (labels != np.floor(labels)).any():
            raise ValueError(f"references must be one class (a whole number) for each of the {len(maps)} maps")
        return maps, labels.astype(np.int64)

    def reference_feature(self, size):
        return datasets.Value("int64")

    def scores(self, maps, references, *, images=None, classifier=None, target=None, batch_size=16, **options):
        try:
            from saliency_bench.metrics.saliency_insertion.score import saliency_insertion
            from saliency_bench.perturbation import batched_curves
        except ModuleNotFoundError as error:
            raise ImportError("saliency_insertion runs the classifier: pip install saliency-bench") from error
        if images is None or classifier is None:
            raise ValueError(
                "saliency_insertion needs images=(B, 3, H, W) in [0, 1] and classifier=, a name or a module"
            )
        target = references if target is None else target
        batches = batched_curves(classifier, images, target, maps, batch_size)
        return np.concatenate([saliency_insertion(curves, **options) for curves in batches])
