"""Load a user's own network from a model string: a function in a file, an architecture with weights, or TorchScript.

    ./net.py:make                                     a function or class that returns a module or a classifier
    ./net.py:make:depth=18,weights=best.ckpt          with arguments for the function, and a weights file
    timm:resnet18:weights=best.safetensors            an architecture from timm or torchvision
    ./net.pt                                          TorchScript

The options `mean`, `std`, `size`, `labels` and `name` of `load_classifier` can be appended:
`mean=[0.5,0.5,0.5],size=224` or `labels=classes.txt`. Only model strings in your own commands and calls are loaded. A
model string in a file of results, in a submission or on the Hub is never loaded (`refuse_own`).
"""

import inspect
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliency_bench import options, user_files
from saliency_bench.compute.classifiers.untrusted import CLASSES
from saliency_bench.errors import UserError, described, no_exit, one_line, unknown
from saliency_bench.utils.files import check_members

if TYPE_CHECKING:
    from torch import Tensor, nn

LIBRARIES = ("timm", "torchvision")
SCRIPT = re.compile(r"(?P<file>.+\.(?:pt|pth|ts|torchscript))(?::(?P<options>.*))?", re.DOTALL)
LOADING = ("mean", "std", "size", "labels", "name")  # arguments of `load_classifier`
NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "module",
          "state_dict_ema", "model_ema", "ema_state_dict", "ema")  # fmt: skip
DEEPEST = 4  # levels of nested keys
UNPACKED = 4  # maximum ratio of unpacked size to file size for a weights file
COMPILED = "_orig_mod."  # torch.compile adds this to the names of weights
RUN_FIRST = "run it first with --model, then use --target predicted-by:FOLDER with the folder of that run"
HOW_TO_GIVE = "use --model ./net.py:make, timm:NAME:weights=FILE or torchvision:NAME:weights=FILE"


def is_own(text: str) -> bool:
    """Return whether a model string names a user's own network rather than a checkpoint."""
    library, _, rest = text.partition(":")
    if library == "hub":
        return False
    if user_files.is_in_file(text) or (library == "torchvision" and ":" in rest):
        return True
    return library == "timm" or (SCRIPT.fullmatch(text) is not None and not Path(text).is_dir())


def refuse_own(name: str, fix: str = "pass the network itself with --model or model=") -> None:
    """Raise UserError if a name from an untrusted file refers to a user's own network; the message ends with `fix`."""
    if is_own(name):
        raise UserError(
            f"the model {one_line(name, 100)} exists only on its author's machine and is never loaded by name; {fix}"
        )


def check(text: str) -> None:
    """Raise UserError for a missing file or an unknown function, without importing torch."""
    if user_files.is_in_file(text):
        user_files.check(text)
        given = user_files.options_of(text)
    else:
        name, given = _parse(text)
        if ":" not in name and not Path(name).expanduser().is_file():
            raise UserError(f"there is no file {name}; {HOW_TO_GIVE}")
        if ":" in name:
            _check_architecture(name, given)
    for key in ("weights", "labels"):
        if isinstance(file := given.get(key), str) and not Path(file).expanduser().is_file():
            raise UserError(f"{key}={file} is not a file; pass the path of an existing file")


def _check_architecture(name: str, given: Mapping[str, object]) -> None:
    """Raise UserError if an architecture does not accept an option, or has no weights."""
    if lost := sorted(given.keys() - {"weights", *LOADING}):
        raise unknown("option", lost[0], ("weights", *LOADING), owner=name)
    if "weights" not in given:
        hub = f"; for weights from the Hub, use timm/{name.partition(':')[2]}" if name.startswith("timm:") else ""
        raise UserError(f"{name} has no weights; use {name}:weights=FILE{hub}")


def opened(text: str) -> tuple[Any, dict[str, Any]]:
    """Return the module, classifier or pipeline that a model string refers to, and arguments for `load_classifier`.

    Raises:
        UserError: The network cannot be built, or the weights do not match.
    """
    check(text)
    if user_files.is_in_file(text):
        function, given = user_files.function_of(text)
        model, given = _made(function, given, text)
    else:
        name, given = _parse(text)
        model = _architecture(name, str(given.pop("weights"))) if ":" in name else _script(Path(name).expanduser())
    settings = {key: given[key] for key in LOADING if given.get(key) is not None}
    if isinstance(labels := settings.get("labels"), str):
        settings["labels"] = _lines(Path(labels).expanduser())
    if not user_files.is_in_file(text):
        settings.setdefault("name", Path(name.rpartition(":")[2]).stem if ":" not in name else name.partition(":")[2])
    return model, settings


def _parse(text: str) -> tuple[str, dict[str, object]]:
    """Split a model string into its source (timm:NAME, torchvision:NAME or a file name) and its options."""
    library, _, rest = text.partition(":")
    if library in LIBRARIES:
        name, given = options.parse(rest)
        return f"{library}:{name}", given
    match = SCRIPT.fullmatch(text)
    assert match is not None, text
    given = options.parse(f"script:{match['options'] or ''}")[1]
    if lost := sorted(given.keys() - set(LOADING)):
        raise unknown("option", lost[0], LOADING, owner=match["file"])
    return match["file"], given


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"labels={path} cannot be read as text; write one class name per line") from error


def _made(function: Any, given: dict[str, object], text: str) -> tuple[Any, dict[str, object]]:
    """Call the function in a file and return (network, remaining options for `load_classifier`)."""
    from torch import nn

    from saliency_bench.compute.classifiers.model_objects import is_pipeline

    takes = {} if isinstance(function, nn.Module) else inspect.signature(function).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in dict(takes).values())
    arguments = {key: value for key, value in given.items()
                 if key in takes or (takes_all and key not in ("weights", *LOADING))}  # fmt: skip
    rest = {key: value for key, value in given.items() if key not in arguments}
    if lost := sorted(rest.keys() - {"weights", *LOADING}):
        raise unknown("option", lost[0], (*takes, "weights", *LOADING), owner=user_files.without_options(text))
    weights = rest.pop("weights", None)
    content = None if weights is None else _content(Path(str(weights)).expanduser())
    if isinstance(function, type) and isinstance(content, Mapping):  # stored by Lightning
        stored = content.get("hyper_parameters")
        known = {key: stored[key] for key in takes if key in stored} if isinstance(stored, Mapping) else {}
        arguments = known | arguments
    model = function if isinstance(function, nn.Module) else _called(function, arguments, text)
    if not isinstance(model, nn.Module) and not is_pipeline(model):
        raise UserError(
            f"{text} returned {type(model).__name__}; return a torch module or the result of load_classifier instead"
        )
    if weights is not None:
        network = getattr(model, "model", model) if is_pipeline(model) or _is_classifier(model) else model
        fill(network, content, str(weights))
    return model, rest


def _is_classifier(model: object) -> bool:
    from saliency_bench.compute.classifiers.classifier import Classifier

    return isinstance(model, Classifier)


def _called(function: Callable[..., Any], arguments: dict[str, object], text: str) -> Any:
    try:
        with no_exit():
            return function(**arguments)
    except UserError:
        raise
    except Exception as error:  # the user's code may raise any exception
        raise UserError(f"{text} raised {described(error)}") from error


def _architecture(name: str, weights: str) -> "nn.Module":
    """Build an architecture from timm or torchvision with as many classes as the weights have, and load the weights."""
    import torch

    library, _, wanted = name.partition(":")
    build = _of_timm(wanted) if library == "timm" else _of_torchvision(wanted)
    content = _content(Path(weights).expanduser())
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in build().state_dict().items()}
    state, _ = _matching(_state_of(content, weights), set(shapes))
    counts = {
        len(value)
        for key, value in state.items()
        if key in shapes and value.ndim and value.shape != shapes[key] and value.shape[1:] == shapes[key][1:]
    }
    if counts and max(counts) > CLASSES:
        raise UserError(
            f"weights={weights} has a last layer with {max(counts):,} classes, but at most {CLASSES:,} are supported"
        )
    model = build(num_classes=counts.pop()) if len(counts) == 1 else build()
    fill(model, content, weights)
    return model


def _of_timm(name: str) -> Callable[..., "nn.Module"]:
    """Return a function that builds a timm architecture with random weights."""
    try:
        import timm
    except ImportError as error:
        raise UserError(f"timm:{name} needs the library timm; run `pip install timm`") from error
    if not timm.is_model(name.partition(".")[0]):
        raise unknown("timm model", name, timm.list_models())
    return lambda **further: timm.create_model(name, pretrained=False, **further)


def _of_torchvision(name: str) -> Callable[..., "nn.Module"]:
    """Return a function that builds a torchvision architecture with random weights."""
    from torchvision import models

    if name not in (names := models.list_models(module=models)):
        raise unknown("torchvision model", name, names)
    extra = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    return lambda **further: models.get_model(name, weights=None, **extra, **further)


def _script(path: Path) -> "nn.Module":
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch recommends another format for writing files
            return torch.jit.load(str(path), map_location="cpu")
    except Exception as error:
        raise UserError(
            f"{path} contains no TorchScript network; for weights, use ./net.py:make:weights={path} with a function "
            "that "
            f"returns the network, timm:NAME:weights={path} or torchvision:NAME:weights={path}; a pickled network is "
            "not opened: save its state_dict()"
        ) from error


def _content(path: Path) -> Any:
    """Return the content of a weights file without executing anything in the file.

    Raises:
        UserError: The file contains objects other than tensors, or cannot be read.
    """
    import pickle

    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if zipfile.is_zipfile(path):  # torch.save does not compress
            with zipfile.ZipFile(path) as packed:
                check_members(packed, UNPACKED * path.stat().st_size)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        trusted = "torch.load(FILE, weights_only=False)['state_dict']"  # a Lightning checkpoint may store any object
        raise UserError(
            f"weights={path} contains more than tensors and is not opened, because it could run code; save only the "
            f"weights: torch.save({trusted if path.suffix == '.ckpt' else 'network.state_dict()'}, NEW)"
        ) from error
    except Exception as error:  # damaged files raise many types of errors
        raise UserError(f"weights={path} cannot be read: {one_line(error, 200)}") from error


def _state_of(content: Any, file: str, depth: int = DEEPEST) -> "dict[str, Tensor]":
    """Return the weights {name: tensor} in a file's content. They may be nested under up to `depth` common keys.

    Raises:
        UserError: The content has no tensors.
    """
    from torch import Tensor

    if isinstance(content, Mapping):
        if depth and (sets := _sets(content)):
            return _state_of(content[sets[0]], file, depth - 1)
        names = {key: str(key).replace(COMPILED, "") for key in content}
        if tensors := {names[key]: value for key, value in content.items() if isinstance(value, Tensor)}:
            return tensors
    raise UserError(f"weights={file} contains no weights {{name: tensor}}; save network.state_dict()")


def _sets(content: Any) -> list[str]:
    """Return the common keys under which a file contains weights; the first key is used."""
    from torch import Tensor

    def has_weights(inner: object, depth: int = DEEPEST) -> bool:
        return isinstance(inner, Mapping) and (
            any(isinstance(value, Tensor) for value in inner.values())
            or (depth > 0 and any(has_weights(inner[key], depth - 1) for key in NESTED if key in inner))
        )

    return [key for key in NESTED if isinstance(content, Mapping) and has_weights(content.get(key))]


def _matching(state: "dict[str, Tensor]", names: set[str]) -> "tuple[dict[str, Tensor], str]":
    """Return (weights renamed to match a network, removed prefix).

    Training code often stores a network inside a wrapper, which adds a prefix: `model.fc.weight` for `fc.weight`. The
    prefix with the most matching names is removed. If several prefixes have equally many matches, the shortest is
    removed.
    """
    prefixes = sorted({key[: -len(name)] for key in state for name in _ends_of(key) if name in names}, key=len)
    best = max(prefixes, key=lambda prefix: sum(prefix + name in state for name in names), default="")
    return {key.removeprefix(best): value for key, value in state.items() if key.startswith(best)}, best


def _ends_of(key: str) -> Iterator[str]:
    parts = key.split(".")
    return (".".join(parts[start:]) for start in range(len(parts)))


def _is_plain(value: "Tensor", weight: "Tensor") -> bool:
    """Return whether a tensor is dense, has data, and is not complex if the weight is real."""
    import torch

    is_dense = value.layout == torch.strided and not value.is_meta and not value.is_quantized
    return is_dense and (weight.is_complex() or not value.is_complex())


def fill(network: "nn.Module", content: Any, file: str) -> None:
    """Load weights into a network. The file must contain every weight of the network.

    Raises:
        UserError: Weights are missing, unknown, not plain tensors, or differ in shape from those of the network.
    """
    from saliency_bench.utils.messages import complain

    state, full = _state_of(content, file), {name.replace(COMPILED, ""): name for name in network.state_dict()}
    weights = {name: network.state_dict()[key] for name, key in full.items()}
    if len(sets := _sets(content)) > 1:
        complain(f"weights={file}: the weights under '{sets[0]}' are used, not those under '{sets[1]}'; to use the "
                 f"latter, save them to a separate file: torch.save(torch.load(FILE)['{sets[1]}'], NEW)")  # fmt: skip
    chosen, prefix = _matching(state, set(weights))
    missing, spare = sorted(weights.keys() - chosen.keys()), sorted(chosen.keys() - weights.keys())
    if strange := [key for key, value in chosen.items() if key in weights and not _is_plain(value, weights[key])]:
        kind = f"{chosen[strange[0]].dtype}, {chosen[strange[0]].layout}, {chosen[strange[0]].device}"
        raise UserError(
            f"weights={file} contains {strange[0]}, which is not a plain tensor of real numbers ({kind}); save it as a "
            "dense tensor of real numbers"
        )
    shapes = [key for key in weights if key in chosen and weights[key].shape != chosen[key].shape]
    if missing or spare:
        lacks = f"lacks {missing[0]}" if missing else f"has {spare[0]}, which the network lacks"
        match = f"{len(weights) - len(missing)} of {len(weights)} weights match"
        raise UserError(f"weights={file} {lacks} ({match}); use the weights of this network")
    if shapes:
        there, wanted = (tuple(values[shapes[0]].shape) for values in (chosen, weights))
        raise UserError(
            f"weights={file} has {shapes[0]} of shape {there}, but the network needs {wanted}; use the weights of this "
            "network"
        )
    if left := len(state) - len(chosen):
        complain(
            f"weights={file}: weights under '{prefix}' are used, and {left:,} weights under other names are ignored"
        )
    network.load_state_dict({full[name]: value for name, value in chosen.items()})
