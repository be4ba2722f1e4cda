"""Record where the user's own data were published.

The record prevents a repository from showing masks that another repository hides.
"""

from pathlib import Path

from saliency_bench import registry
from saliency_bench.data.output_folder import PUBLISHED
from saliency_bench.errors import UserError
from saliency_bench.utils.files import read_json, write_json


def is_own_data(name: str) -> bool:
    """Return whether a builder is for the user's own data.

    Such data have no name on the Hub until the user chooses one.
    """
    return hasattr(registry.load("hub_builders", name), "OWN_DATA")


def check_published_alike(folder: Path, repo: str, hide: str | None) -> None:
    """Check that all repositories published from a folder hide the same masks.

    Args:
        folder: Folder of the dataset.
        repo: Repository to publish.
        hide: Split whose masks `repo` hides, or None if it shows all masks.

    Raises:
        UserError: A different repository hides masks that `repo` would show, or shows masks that `repo` would hide. The
            message names this repository.
    """
    for other, hidden in _published(folder).items():
        if other.casefold() == repo.casefold() or hidden == hide:
            continue
        unless = f"if this is no longer the case, delete {folder / PUBLISHED}"
        if hidden:
            raise UserError(
                f"{other} hides the masks of {hidden}, which {repo} would show; add --hide-masks {hidden}; {unless}"
            )
        raise UserError(
            f"{other} was published with the masks of {hide}, so others may already have them; remove --hide-masks; "
            f"{unless}"
        )


def note_published(folder: Path, repo: str, hide: str | None) -> None:
    """Record in a folder that this repository was published from it.

    The arguments are those of `check_published_alike`.
    """
    write_json(folder / PUBLISHED, _published(folder) | {repo: hide})


def _published(folder: Path) -> dict[str, str | None]:
    """Return {repository: split with hidden masks, or None} for all repositories published from a folder."""
    path = folder / PUBLISHED
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{path} is not valid; delete it if none of the repositories listed in it hides masks")
    return content
