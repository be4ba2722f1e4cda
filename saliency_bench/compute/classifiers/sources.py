"""Find the files of a checkpoint: a local folder, or the cached snapshot of a Hub repository at one commit."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from saliency_bench.compute.classifiers.untrusted import check_file
from saliency_bench.errors import UserError, one_line
from saliency_bench.hub.repo_names import FORCED, could_be_on_the_hub, hub_name
from saliency_bench.utils.files import near_folders
from saliency_bench.utils.messages import complain
from saliency_bench.utils.storage import storage_error

# Checkpoints that the papers use, for `list models` and suggestions.
KNOWN = (
    "facebook/convnext-base-224",
    "facebook/deit-small-patch16-224",
    "google/vit-base-patch16-224",
    "microsoft/resnet-18",
    "microsoft/resnet-50",
    "timm/inception_v3.tv_in1k",
    "timm/vgg16.tv_in1k",
    "timm/vgg19.tv_in1k",
    "timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
)
# Files to download: neither code nor pickles, so that no downloaded file can be executed.
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
# Vision-language models.
TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
)
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
FILES = ("config.json", *PROCESSORS, *TOKENIZERS, *WEIGHTS)
TIMEOUT = 10  # seconds to wait for the first response of the Hub


@dataclass(frozen=True)
class ModelSource:
    """The folder of a checkpoint. For the snapshot of a Hub repository, `repo` and `revision` (a commit) are set."""

    name: str
    folder: Path
    repo: str | None = None
    revision: str | None = None


def source_of(name: str, revision: str | None = None) -> ModelSource:
    """Find a checkpoint: the folder with exactly this name, or else a Hub repository, which is downloaded once.

    "hub:owner/name" means the repository even if there is a folder with this name. "owner/name@revision" selects a
    branch, tag or commit. If the Hub cannot be reached, the cached snapshot is used.

    Raises:
        UserError: The name is neither a folder nor a repository, the Hub cannot be reached, or `revision` is set
            for a folder.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        check_name(name)
        repository = hub_name(name, revision)
        return _snapshot(repository.name, repository.revision)
    if revision is not None:
        raise UserError(f"{name} is a folder and has no revisions; remove revision=")
    if "/" in name and could_be_on_the_hub(name):
        complain(
            f"the model {name} is loaded from the folder {path.resolve()}; to load it from the Hub, write "
            f"{FORCED}{name}"
        )
    return ModelSource(name, path)


def check_name(name: str) -> None:
    """Raise UserError if a name is neither a checkpoint folder nor a valid name on the Hub. No request is sent."""
    path = Path(name).expanduser()
    if path.is_file():
        raise UserError(_about_file(path))
    if path.is_dir():
        if os.path.lexists(path / "config.json"):
            check_file(path / "config.json")
        else:
            raise UserError(
                f"{name} contains no loadable image classifier: there is no config.json; use the folder of a "
                "transformers checkpoint"
            )
    elif not could_be_on_the_hub(hub_name(name).name):
        raise UserError(_no_folder(name, path))


def cached_snapshots(repo: str) -> list[Path]:
    """Return the cached snapshots of a repository. No request is sent."""
    from saliency_bench.hub.cache import folder_of

    if not could_be_on_the_hub(repo):
        return []
    return sorted(config.parent for config in folder_of("model", repo).glob("snapshots/*/config.json"))


def _snapshot(repo: str, revision: str | None) -> ModelSource:
    """Return the snapshot of a Hub repository: downloaded if the Hub can be reached, else from the cache."""
    # Imported here because it takes a second: checking and listing names do not need the client.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError

    from saliency_bench.hub.cache import remember, remembered
    from saliency_bench.hub.client import no_bars
    from saliency_bench.hub.failures import status_of

    error: Exception | None = None
    try:
        # One attempt with a timeout: huggingface_hub itself would retry for half a minute.
        commit = HfApi().repo_info(repo, revision=revision, timeout=TIMEOUT).sha or revision
        remember("model", repo, revision, commit or "")
    except Exception as caught:
        error, commit = caught, remembered("model", repo, revision) or revision
        if isinstance(caught, HFValidationError) or status_of(caught) in (401, 403, 404):
            raise _refusal(repo, revision, caught) from caught
    try:
        with no_bars():
            folder = Path(snapshot_download(repo, revision=commit, allow_patterns=list(FILES),
                                            local_files_only=error is not None))  # fmt: skip
    except Exception as caught:
        raise _refusal(repo, revision, error or caught) from (error or caught)
    return ModelSource(repo, folder, repo, folder.name)


def _refusal(repo: str, revision: str | None, error: Exception) -> UserError:
    from huggingface_hub import get_token
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    from saliency_bench.hub.failures import is_network_error, reason, status_of

    missing = isinstance(error, RepositoryNotFoundError | HFValidationError) and not isinstance(error, GatedRepoError)
    if missing:
        near = _suggestions(repo)
        fix = f"did you mean {' or '.join(near)}?" if near else "use a Hub id, a folder or torchvision:NAME"
        where = "not a local folder" if near else _not_local(repo)  # `_not_local` would list the suggestions again
        return UserError(f"unknown model '{repo}': {where} and not found on the Hub; {fix}")
    if isinstance(error, RevisionNotFoundError):
        return UserError(f"the Hub has no revision '{revision}' of {repo}; use a branch, tag or commit")
    offline = isinstance(error, OfflineModeIsEnabled)
    if offline or is_network_error(error):
        message = f"'{repo}' is {_not_local(repo)} and not in the cache"
        why = "HF_HUB_OFFLINE is set" if offline else "the Hub cannot be reached"
        # Do not suggest names on the Hub if the Hub cannot be reached.
        if near := [name for name in _suggestions(repo) if name not in KNOWN or "/" not in repo]:
            return UserError(f"'{repo}' is not a local folder; did you mean {' or '.join(near)}? ({why})")
        return UserError(
            f"{message}, and {why}; {'unset it' if offline else 'check the connection'} to download the model"
        )
    if named := storage_error(error):
        return named
    if status_of(error) is None:
        return UserError(f"{repo} cannot be loaded from the Hub: {one_line(error, 200)}")
    return UserError(reason(error, repo, get_token()))


def _not_local(name: str) -> str:
    """Return "not a local folder", followed by the checkpoints in the parent folder if the parent folder exists."""
    parent = Path(name).parent
    if not parent.name or not parent.is_dir():
        return "not a local folder"
    beside = ", ".join(sorted(config.parent.name for config in parent.glob("*/config.json"))[:5])
    return f"not a local folder ({parent} contains {beside or 'no checkpoint'})"


def _suggestions(name: str) -> list[str]:
    """Return the checkpoints that a user may have meant.

    These are the checkpoints with this name after the owner (microsoft/resnet-18 for resnet-18). If there are none,
    similar folders and very similar names are suggested (resnet-50 is too different from resnet-18).
    """
    if name in KNOWN:
        return []
    with_owner = [full_name for full_name in KNOWN if full_name.partition("/")[2].lower() == name.lower()]
    near = [*_near_checkpoints(Path(name)), *get_close_matches(name, KNOWN, n=3, cutoff=0.9)]
    return with_owner or list(dict.fromkeys(near))  # a local folder may have the name of a Hub repository


def _no_folder(name: str, path: Path) -> str:
    if near := _near_checkpoints(path):
        return f"there is no folder '{name}'; did you mean {' or '.join(near)}?"
    if not path.parent.is_dir():
        return f"there is no folder '{name}': {path.parent} does not exist"
    return f"there is no folder '{name}'; check the path, or use a Hub id as OWNER/NAME"


def _near_checkpoints(path: Path) -> list[str]:
    return near_folders(path, lambda folder: (folder / "config.json").is_file())


def _about_file(path: Path) -> str:
    """Return the message for a file given instead of a checkpoint's folder."""
    texts = (
        f"timm:NAME:weights={path}, torchvision:NAME:weights={path}, or ./net.py:make:weights={path} with a function "
        "that returns the network"
    )
    if path.suffix in (".safetensors", ".json"):
        folder = (
            f"{path} is one file of a checkpoint; use the checkpoint's folder, which contains config.json and "
            "preprocessor_config.json"
        )
        return folder + f"; for your own weights, use {texts}" * (path.suffix != ".json")
    if path.suffix in (".bin", ".ckpt", ".pkl", ".pickle"):
        lightning = "; for a Lightning checkpoint, make is the class of its module" * (path.suffix == ".ckpt")
        return f"{path} contains weights without a network; use {texts}{lightning}"
    if path.suffix in (".onnx", ".pt2", ".tflite", ".engine", ".keras", ".h5"):
        return (
            f"{path} has no gradients or layers that PyTorch can read; use the network from which it was exported: "
            "./net.py:make with a function that returns this network"
        )
    return f"{path} is a file; use a folder, a Hub id, torchvision:NAME, ./net.py:make or a torch module"
