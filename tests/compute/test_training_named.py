"""Test small versions of the checkpoints that the papers use. They are fine-tuned, saved, and explained in a run."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageClassification, ConvNextImageProcessor

import saliency_bench as sb
from saliency_bench.compute.classifiers.sources import KNOWN

pytestmark = pytest.mark.slow

VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 32,
       "patch_size": 8}  # fmt: skip
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 16], "depths": [1, 1, 1, 1]}
TINY = {
    "facebook/convnext-base-224": {"model_type": "convnext", "depths": [1] * 4, "hidden_sizes": [8, 12, 16, 16]},
    "facebook/deit-small-patch16-224": {"model_type": "deit", "architectures": ["DeiTForImageClassification"], **VIT},
    "google/vit-base-patch16-224": {"model_type": "vit", **VIT},
    "microsoft/resnet-18": RESNET | {"layer_type": "basic"},
    "microsoft/resnet-50": RESNET | {"layer_type": "bottleneck"},
    "timm/inception_v3.tv_in1k": {},  # this network has a fixed size
    "timm/vgg16.tv_in1k": {"mlp_ratio": 1 / 64},
    "timm/vgg19.tv_in1k": {"mlp_ratio": 1 / 64},
    "timm/vit_small_patch16_224.augreg_in21k_ft_in1k": {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2,
                                                        "num_heads": 2},
}  # fmt: skip
CLASSES = 30  # classes of the checkpoint, more than in the dataset


def pretrained(folder, name, size):
    owner, _, architecture = name.partition("/")
    options, torch_name = TINY[name], architecture.partition(".")[0]
    if owner == "timm":
        options = {"model_type": "timm_wrapper", "architecture": torch_name, "model_args": options}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**options, num_labels=CLASSES)
    AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    if owner == "timm":  # in timm's layout, without a processor file
        about = {"input_size": [3, size, size], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0,
                 "interpolation": "bicubic", "num_classes": CLASSES}  # fmt: skip
        own = {"architecture": torch_name, "num_classes": CLASSES, "model_args": TINY[name], "pretrained_cfg": about}
        (folder / "config.json").write_text(json.dumps(own))
    else:
        frame = {"size": {"shortest_edge": size}, "crop_pct": 1.0, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        ConvNextImageProcessor(**frame).save_pretrained(folder)
    return folder


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize("name", sorted(set(KNOWN) | set(TINY)))
def test_it_is_trained_and_explained(name, shapes, tmp_path):
    size = 96 if "inception" in name else 32
    start = pretrained(tmp_path / "start", name, size)
    out = sb.train(dataset=str(shapes), model=str(start), out=tmp_path / "trained", epochs=1, size=size, limit=8,
                   batch_size=8, device="cpu", progress=False)  # fmt: skip
    before, after = (load_file(folder / "model.safetensors") for folder in (start, out))
    assert before.keys() == after.keys()
    kept = [key for key in before if before[key].shape == after[key].shape]
    assert 1 <= len(before) - len(kept) <= 4  # the head, and the head of Inception's auxiliary output
    assert any(not torch.equal(before[key], after[key]) for key in kept)
    classifier = sb.load_classifier(str(out), device="cpu")
    assert list(classifier.labels) == sb.load_dataset(str(shapes)).features["label"].names
    batch = classifier.prepare(sb.load_dataset(str(shapes)).select(range(2)))
    assert classifier(batch.images).shape == (2, len(classifier.labels))
    explainer = "rollout" if "vit" in name or "deit" in name else "gradcam"
    run = sb.run(dataset=str(shapes), model=str(out), explainers=[explainer, "random"],
                 metrics=["saliency_miou", "saliency_insertion:steps=4"], limit=4, batch_size=4, out=tmp_path / "run",
                 device="cpu", progress=False)  # fmt: skip
    assert [cell.n for cell in run.cells] == [4] * 4
