"""What takes the place of datasets and models under --smoke: drawn pictures and networks of a few thousand weights."""

import json
from pathlib import Path
from typing import Any

from saliency_bench.data.building import build
from saliency_bench.engine.suites.jobs import Choice, Job, smoke_config
from saliency_bench.engine.suites.schema import Suite
from saliency_bench.utils.files import write_text
from saliency_bench.utils.seeds import seed_of


def prepare(suite: Suite, jobs: list[Job], choice: Choice) -> None:
    """Draw the datasets and write the networks' configs, unless they are there."""
    for entry in suite.models.values():
        path = smoke_config(choice, entry)
        if not path.is_file():
            write_text(path, json.dumps(_config(entry.family, suite.smoke.size), indent=2) + "\n")
    for dataset, folder in dict.fromkeys((job.dataset, str(job.spec.dataset)) for job in jobs):
        if not Path(folder).exists():
            seed = seed_of("smoke", dataset) % 1000
            build("shapes-xai", folder, size=suite.smoke.size, count=suite.smoke.count, seed=seed, progress=False)


def _config(family: str, size: int) -> dict[str, Any]:
    """Return a transformers config; small residual networks stand for VGG and Inception, which have no small form."""
    if family == "vit":
        return {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 16,
                "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": size,
                "patch_size": size // 4}  # fmt: skip
    if family == "convnext":
        return {"model_type": "convnext", "architectures": ["ConvNextForImageClassification"], "depths": [1, 1, 1, 1],
                "hidden_sizes": [8, 12, 16, 16], "patch_size": 2, "image_size": size}  # fmt: skip
    widths = {"resnet": [8, 12], "vgg": [12, 12], "inception": [8, 16]}[family]
    return {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "embedding_size": 8,
            "hidden_sizes": widths, "depths": [1, 1], "layer_type": "basic"}  # fmt: skip
