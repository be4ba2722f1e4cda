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

# Checkpoints that the papers use, for `list models` and for suggestions.
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
# No code and no pickles: what is not downloaded cannot be executed.
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
# Vision-language models.
TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
)
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
FILES = ("config.json", *PROCESSORS, *TOKENIZERS, *WEIGHTS)
TIMEOUT = 10  # seconds for the first answer of the Hub


@dataclass(frozen=True)
class ModelSource:
    """The folder of a checkpoint; `repo` and `revision` (a commit) if it is the snapshot of a Hub repository."""

    name: str
    folder: Path
    repo: str | None = None
    revision: str | None = None


def source_of(name: str, revision: str | None = None) -> ModelSource:
    """Return the files of a checkpoint: a folder of exactly this name, else a Hub repository, downloaded once.

    "hub:owner/name" is the repository also where such a folder exists, and "owner/name@revision" names a branch, tag or
    commit. If the Hub cannot be reached, its cached snapshot is used.

    Raises:
        UserError: The name is neither, the Hub cannot be reached, or a folder is given a revision.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        check_name(name)
        repository = hub_name(name, revision)
        return _snapshot(repository.name, repository.revision)
    if revision is not None:
        raise UserError(f"{name} is a folder and has no revisions; leave out revision=")
    if "/" in name and could_be_on_the_hub(name):
        complain(f"the model {name} is the folder {path.resolve()}; write {FORCED}{name} for the Hub")
    return ModelSource(name, path)


def check_name(name: str) -> None:
    """Raise UserError for a name that is no folder of a checkpoint and cannot be on the Hub, which is not asked."""
    path = Path(name).expanduser()
    if path.is_file():
        raise UserError(_about_file(path))
    if path.is_dir():
        if os.path.lexists(path / "config.json"):
            check_file(path / "config.json")
        else:
            raise UserError(
                f"{name} holds no loadable image classifier: no config.json; a transformers checkpoint has one"
            )
    elif not could_be_on_the_hub(hub_name(name).name):
        raise UserError(_no_folder(name, path))


def cached_snapshots(repo: str) -> list[Path]:
    """Return the snapshots of a repository that are in the cache; the network is not asked."""
    from saliency_bench.hub.cache import folder_of

    if not could_be_on_the_hub(repo):
        return []
    return sorted(config.parent for config in folder_of("model", repo).glob("snapshots/*/config.json"))


def _snapshot(repo: str, revision: str | None) -> ModelSource:
    """Return the snapshot of a Hub repository, downloaded if the Hub can be reached, else from the cache."""
    # Imported here, as it takes a second: names are checked, and listed, without the client.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError

    from saliency_bench.hub.cache import remember, remembered
    from saliency_bench.hub.client import no_bars
    from saliency_bench.hub.failures import status_of

    error: Exception | None = None
    try:
        # Bounded and not repeated: huggingface_hub itself would ask again for half a minute.
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
    """Return the readable error for a repository that cannot be loaded."""
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
        fix = f"did you mean {' or '.join(near)}?" if near else "give a Hub id, a folder or torchvision:NAME"
        where = "not a local folder" if near else _not_local(repo)  # whose list would hold the suggestions once more
        return UserError(f"unknown model '{repo}': {where} and not found on the Hub; {fix}")
    if isinstance(error, RevisionNotFoundError):
        return UserError(f"the Hub has no revision '{revision}' of {repo}; give a branch, tag or commit")
    offline = isinstance(error, OfflineModeIsEnabled)
    if offline or is_network_error(error):
        message = f"'{repo}' is {_not_local(repo)} and not in the cache"
        why = "HF_HUB_OFFLINE is set" if offline else "the Hub cannot be reached"
        # Names of the Hub alone are no help where it cannot be reached.
        if near := [name for name in _suggestions(repo) if name not in KNOWN or "/" not in repo]:
            return UserError(f"'{repo}' is not a local folder; did you mean {' or '.join(near)}? ({why})")
        return UserError(f"{message}, and {why}; {'unset it' if offline else 'check the connection'} to download it")
    if named := storage_error(error):
        return named
    if status_of(error) is None:
        return UserError(f"{repo} cannot be loaded from the Hub: {one_line(error, 200)}")
    return UserError(reason(error, repo, get_token()))


def _not_local(name: str) -> str:
    """Say that a name is no local folder; if its parent exists, a path may be meant, and its checkpoints are listed."""
    parent = Path(name).parent
    if not parent.name or not parent.is_dir():
        return "not a local folder"
    beside = ", ".join(sorted(config.parent.name for config in parent.glob("*/config.json"))[:5])
    return f"no folder ({parent} holds {beside or 'no checkpoint'})"


def _suggestions(name: str) -> list[str]:
    """Return the checkpoints that a name may mean.

    Those that their owner calls so (microsoft/resnet-18 for resnet-18), else near folders and very near names:
    resnet-50 is no suggestion for resnet-18.
    """
    if name in KNOWN:
        return []
    with_owner = [full_name for full_name in KNOWN if full_name.partition("/")[2].lower() == name.lower()]
    near = [*_near_checkpoints(Path(name)), *get_close_matches(name, KNOWN, n=3, cutoff=0.9)]
    return with_owner or list(dict.fromkeys(near))  # a local folder may be called as a repository of the Hub


def _no_folder(name: str, path: Path) -> str:
    """Return the message for a path without a folder."""
    if near := _near_checkpoints(path):
        return f"there is no folder '{name}'; did you mean {' or '.join(near)}?"
    if not path.parent.is_dir():
        return f"there is no folder '{name}': {path.parent} does not exist"
    return f"there is no folder '{name}'; check the path, or give a Hub id as OWNER/NAME"


def _near_checkpoints(path: Path) -> list[str]:
    """Return local folders of checkpoints that a path may mean."""
    return near_folders(path, lambda folder: (folder / "config.json").is_file())


def _about_file(path: Path) -> str:
    """Return the message for a file in the place of a checkpoint's folder."""
    texts = (
        f"timm:NAME:weights={path}, torchvision:NAME:weights={path}, or ./net.py:make:weights={path} with a function "
        "that returns the network"
    )
    if path.suffix in (".safetensors", ".json"):
        folder = f"{path} is one file of a checkpoint; give its folder, with config.json and preprocessor_config.json"
        return folder + f"; for weights of your own, give {texts}" * (path.suffix != ".json")
    if path.suffix in (".bin", ".ckpt", ".pkl", ".pickle"):
        lightning = "; for a checkpoint of Lightning, make is its class" * (path.suffix == ".ckpt")
        return f"{path} holds weights without their network; give {texts}{lightning}"
    if path.suffix in (".onnx", ".pt2", ".tflite", ".engine", ".keras", ".h5"):
        return (
            f"{path} has no gradients or layers that PyTorch could read; give the network that it was exported from: "
            "./net.py:make with a function that returns it"
        )
    return f"{path} is a file; give a folder, a Hub id, torchvision:NAME, ./net.py:make or a torch module"
