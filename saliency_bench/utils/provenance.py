"""Record the library versions and hardware of a run. They are not part of a cell's identity."""

import os
import platform
from collections.abc import Iterable
from importlib import metadata

import torch

import saliency_bench

LIBRARIES = ("accelerate", "datasets", "evaluate", "numpy", "pillow", "pyarrow", "timm", "torch", "torchvision",
             "transformers")  # fmt: skip


def provenance(device: torch.device, plugins: Iterable[str] = ()) -> dict:
    """Return {item: version or name} for this package, its libraries, its plugins, and this machine."""
    gpu = device.type == "cuda"
    return {
        "saliency_bench": saliency_bench.__version__,
        "python": platform.python_version(),
        "libraries": {name: version for name in (*LIBRARIES, *plugins) if (version := _version(name))},
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        **({"cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda} if gpu else {}),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "system": platform.system(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
