"""Check checkpoints from unknown authors: limit the files that are read and the networks that a config may request.

A config of a few bytes can request a network of any size, weights from another folder or from the Hub, or a kernel
(code). Each config is therefore read as plain JSON before transformers loads it, and the modules and parameters of the
resulting network are counted. All limits in this module apply to downloads only, never to model objects.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliency_bench.errors import UserError, one_line

if TYPE_CHECKING:  # files are checked before torch is imported
    from torch import Tensor, nn

INDEX = "model.safetensors.index.json"
JSON = ("config.json", "preprocessor_config.json", "processor_config.json", INDEX)
LARGEST_JSON = 10_000_000  # bytes; the names of ImageNet-21k take 2 MB
LARGEST = 2**20  # largest number in a config, and largest sum of a list of numbers
CLASSES = 100_000
MODULES = 20_000  # a ViT of 6 billion parameters has 1,000
SPARE = 2**24  # parameters that a small file may lack, such as the parameters of a replaced head
WITHOUT_WEIGHTS = 2**30  # parameters of a network that starts from random weights
LABELS = ("id2label", "label2id", "label_names", "label_descriptions")  # class names, which do not refer to files
ATTENTION = ("eager", "sdpa")
PLAIN = re.compile(r"[\w.+, -]{0,100}", re.ASCII)  # a plain name, not a path or a URL


def check_folder(folder: Path, name: str) -> None:
    """Raise UserError if a file of a checkpoint is a pipe, device or broken link, or a JSON file is too large."""
    for file in sorted(folder.iterdir()):
        if file.name in JSON or file.suffix == ".safetensors":
            check_file(file)


def check_weights(folder: Path, name: str) -> None:
    """Raise UserError if an index or an adapter refers to weights outside the folder."""
    if (index := folder / INDEX).exists():
        _check_index(index)
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{name} has an adapter_config.json, which names another model to load; merge the adapter into that model "
            "(merge_and_unload in peft) and save the merged model, or remove the file"
        )


def _check_index(file: Path) -> None:
    """Raise UserError unless an index names only files in its own folder, because the named files are opened."""
    index = json.loads(file.read_text(encoding="utf-8"))
    places = index.get("weight_map") if isinstance(index, dict) else None
    beside = {path.name for path in file.parent.glob("*.safetensors")}
    for place in places.values() if isinstance(places, dict) else [places]:
        if not isinstance(place, str) or place not in beside:
            raise UserError(f"{file} names {one_line(place, 80)}, but there is no such .safetensors file in its folder")


def check_file(file: Path) -> None:
    """Raise UserError if this is not a regular file, or if it is a JSON file that is too large for a config."""
    if not file.is_file():
        raise UserError(
            f"{file} is not a readable file (it is a folder, pipe, device or broken link); replace it with a regular "
            "file"
        )
    if file.suffix == ".json" and file.stat().st_size > LARGEST_JSON:
        raise UserError(
            f"{file} is {file.stat().st_size / 1e6:.0f} MB in size; a config may be at most {LARGEST_JSON / 1e6:.0f} MB"
        )


def check_config(file: Path, name: str) -> None:
    """Raise UserError if a config requests a network that is too large, files outside its folder, or code."""
    check_file(file)
    config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        return  # transformers raises a clear error
    for key, value in _entries(config):
        reason = _refused(key, value)
        if key == "model_args":
            reason = reason or _leads_outside(value)
        if reason:
            raise UserError(f"the config of {name} has {one_line(key, 60)} {one_line(value, 80)}: {reason}")


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the (key, value) pairs of dictionaries at any depth. Items of a list are yielded with the list's key."""
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:
        key, value = waiting.pop()
        if key:
            yield key, value
        if isinstance(value, dict):
            waiting += [(str(k), v) for k, v in value.items() if k not in LABELS]
        elif isinstance(value, list):
            waiting += [(key, item) for item in value]


def _refused(key: str, value: Any) -> str | None:
    """Return why an entry of a config is rejected, or None."""
    if isinstance(value, list):
        value, many = sum(abs(item) for item in value if _is_number(item)), True
    else:
        many = False
    if _is_number(value):
        if key in ("num_labels", "num_classes") and value > CLASSES:
            return f"more than {CLASSES} classes"
        if abs(value) > LARGEST:
            return f"the {'sum of a list' if many else 'number'} is above {LARGEST}"
    if key.endswith(("attn_implementation", "attn_implementation_internal", "experts_implementation")):
        return None if _is_attention(value) else "that may be code from the Hub; use eager or sdpa"
    if key in ("use_kernels", "kernel_config", "auto_mapping", "use_pretrained_backbone") and value:
        return "that loads code or weights from elsewhere, and downloaded code is never executed; remove it"
    if key == "quantization_config" and value is not None:
        return "quantised weights have no gradients; save the network in float32, float16 or bfloat16"
    if key == "configuration_files":
        return "that refers to another config; copy the content of that config to config.json"
    if key in ("architecture", "backbone") and value is not None and not _is_plain(value):
        return "only a plain name is accepted, such as resnet50, not a folder or URL outside the checkpoint"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a plain name or a dictionary. Entries of dictionaries are checked separately."""
    return isinstance(value, dict) or (isinstance(value, str) and PLAIN.fullmatch(value) is not None)


def _is_attention(value: Any) -> bool:
    """Return whether a value names an attention implementation that is part of transformers or installed here."""
    if isinstance(value, dict):
        return all(_is_attention(item) for item in value.values())
    if value == "flash_attention_2":
        return find_spec("flash_attn") is not None
    return value is None or value in ATTENTION


def _leads_outside(arguments: Any) -> str | None:
    """Return why arguments for timm are rejected, or None.

    Some keys and all paths are rejected because they refer to files.
    """
    for key, value in _entries({"model_args": arguments}):
        elsewhere = key.startswith("pretrained") or key in ("checkpoint_path", "cache_dir", "file", "url", "hf_hub_id")
        if elsewhere or (isinstance(value, str) and not _is_plain(value)):
            return f"{one_line(key, 60)} refers to files outside the folder of the checkpoint; remove it"
    return None


def room_of(folder: Path) -> int:
    """Return the maximum number of parameters that a folder's weights can contain, at one byte per parameter."""
    return SPARE + sum(file.stat().st_size for file in folder.glob("*.safetensors"))


@contextmanager
def counted(name: str, room: int = WITHOUT_WEIGHTS) -> Iterator[None]:
    """Limit networks built inside the context to `MODULES` modules, and to `room` values in parameters and buffers.

    Modules and parameters are counted when torch registers them, before the parameters are filled.

    Raises:
        UserError: A network exceeds a limit.
    """
    from torch.nn.modules import module as registration
    from torch.nn.parameter import is_lazy

    modules: set[tuple[int, str]] = set()
    sizes: dict[tuple[int, str], int] = {}
    total = 0

    def module(parent: "nn.Module", key: str, _: "nn.Module | None") -> None:
        modules.add((id(parent), key))
        if len(modules) > MODULES:
            raise UserError(f"the config of {name} requests more than {MODULES} modules; check its depths and layers")

    def tensor(parent: "nn.Module", key: str, value: "Tensor | None") -> None:
        nonlocal total
        size = 0 if value is None or is_lazy(value) else value.numel()
        total += size - sizes.get((id(parent), key), 0)  # loading registers the same tensors again
        sizes[id(parent), key] = size
        if total > room:
            raise UserError(
                f"the config of {name} requests more parameters than the {room} that fit in its weights file; use "
                "config.json and weights of the same network"
                if room != WITHOUT_WEIGHTS
                else f"the config of {name} requests more than {room} parameters; reduce its sizes"
            )

    with ExitStack() as stack:
        for hook in (
            registration.register_module_module_registration_hook(module),
            registration.register_module_parameter_registration_hook(tensor),
            registration.register_module_buffer_registration_hook(tensor),
        ):
            stack.callback(hook.remove)
        yield
