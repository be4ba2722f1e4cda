"""Replacements for datasets and models in a smoke test: synthetic images and networks with a few thousand weights."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from saliency_bench.data.building import build
from saliency_bench.recipes.suites.suite_jobs import DRAWINGS, SuiteChoice, data_of, smoke_config
from saliency_bench.recipes.suites.suite_schema import Suite
from saliency_bench.utils.files import write_text
from saliency_bench.utils.seeds import seed_of


def prepare(suite: Suite, tables: Iterable[str], choice: SuiteChoice) -> None:
    """Create the synthetic datasets and the configs of the small networks, unless they already exist."""
    for entry in suite.models.values():
        path = smoke_config(choice, entry.name)
        if not path.is_file():
            write_text(path, json.dumps(_config(entry.family, suite.smoke.size), indent=2) + "\n")
    runs = {run for table in tables for run in suite.items[table].runs}
    names = [name for name in suite.datasets if any(name in suite.runs[run].datasets for run in runs)]
    folders = [(name, data_of(suite.datasets[name], name, choice), suite.smoke.count) for name in names
               if choice.takes("dataset", name)]  # fmt: skip
    if any(suite.items[table].needs_runs for table in tables):  # networks to train
        folders.append((DRAWINGS, str(choice.out / "data" / DRAWINGS), suite.smoke.drawings))
    for dataset, folder, count in folders:
        if not Path(folder).exists():
            seed = seed_of("smoke", dataset) % 1000
            build("shapes-xai", folder, size=suite.smoke.size, count=count, seed=seed, progress=False)


def _config(family: str, size: int) -> dict[str, Any]:
    """Return the transformers config for a small network of this family.

    For a family without a small model that learns quickly, the config of a small residual network is used.
    """
    if family == "vit":  # With the usual initial weights, layers this narrow learn little in a few steps.
        return {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 48,
                "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "image_size": size,
                "patch_size": size // 8, "initializer_range": 0.15}  # fmt: skip
    widths = {"resnet": [24, 48], "vgg": [32, 48], "inception": [24, 40], "convnext": [32, 40]}[family]
    return {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "embedding_size": 24,
            "hidden_sizes": widths, "depths": [1, 1], "layer_type": "basic"}  # fmt: skip
