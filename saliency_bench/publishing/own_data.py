"""Record where your own data were published, so that no repository shows masks that another one hides."""

from pathlib import Path

from saliency_bench import registry
from saliency_bench.data.output_folder import PUBLISHED
from saliency_bench.errors import UserError
from saliency_bench.utils.files import read_json, write_json


def is_own_data(name: str) -> bool:
    """Return whether a builder is for your own data, which have no name on the Hub until you give one."""
    return hasattr(registry.load("hub_builders", name), "OWN_DATA")


def check_published_alike(folder: Path, repo: str, hide: str | None) -> None:
    """Check that no other repository hides a folder's masks that this one would show, or shows masks it would hide.

    Args:
        folder: folder of the dataset.
        repo: repository to publish.
        hide: split whose masks it hides; None: it shows all.

    Raises:
        UserError: There is such a repository; the message names it.
    """
    for other, hidden in _published(folder).items():
        if other.casefold() == repo.casefold() or hidden == hide:
            continue
        unless = f"if this is no longer true, delete {folder / PUBLISHED}"
        if hidden:
            raise UserError(
                f"{other} hides the masks of {hidden}, which {repo} would show: add --hide-masks {hidden}; {unless}"
            )
        raise UserError(
            f"{other} was published with the masks of {hide}: hiding masks that others may have is useless; {unless}"
        )


def note_published(folder: Path, repo: str, hide: str | None) -> None:
    """Record in a folder that a repository is published from it; for arguments see `check_published_alike`."""
    write_json(folder / PUBLISHED, _published(folder) | {repo: hide})


def _published(folder: Path) -> dict[str, str | None]:
    """Return {repository: the split whose masks it hides, or None if it shows all} of a folder."""
    path = folder / PUBLISHED
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{path} was changed; delete it if none of its repositories hides masks")
    return content
