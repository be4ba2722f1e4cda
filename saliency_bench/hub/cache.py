"""Record which commit a branch refers to, in the cache folder of huggingface_hub.

If a file is requested by commit, huggingface_hub does not record the branch. This module records it, so that the
branch can later be resolved to the same commit without contacting the Hub.
"""

from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_text


def folder_of(kind: str, repo: str) -> Path:
    """Return the local cache folder of a repository ("model" or "dataset")."""
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type=kind)


def snapshot_of(kind: str, repo: str, commit: str) -> Path:
    """Return the local folder that contains a commit's files."""
    return folder_of(kind, repo) / "snapshots" / commit


def remember(kind: str, repo: str, revision: str | None, commit: str) -> None:
    """Record the commit that a revision (default "main") refers to."""
    if revision == commit:
        return
    with suppress(UserError):  # no writable cache
        write_text(folder_of(kind, repo) / "refs" / (revision or "main"), commit)


def remembered(kind: str, repo: str, revision: str | None) -> str | None:
    """Return the last recorded commit of a revision, or None.

    A revision that is itself a commit is returned unchanged if any file of this commit is cached.
    """
    with suppress(OSError, ValueError):
        if revision and snapshot_of(kind, repo, revision).is_dir():
            return revision
        return (folder_of(kind, repo) / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    return None
