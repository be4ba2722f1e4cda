"""Note where one's own data were published from a folder, so that no repository shows the masks that another hides."""

from pathlib import Path

from saliency_bench import registry
from saliency_bench.data.output_folder import PUBLISHED
from saliency_bench.errors import UserError
from saliency_bench.utils.files import read_json, write_json


def is_own_data(name: str) -> bool:
    """Return whether a builder is for anyone's own data, which have no name on the Hub until they are given one."""
    return hasattr(registry.load("hub_builders", name), "OWN_DATA")


def check_published_alike(folder: Path, repo: str, hide: str | None) -> None:
    """Check that no other repository hides masks of a folder that this one would show, or shows those it would hide.

    Args:
        folder: folder of the dataset.
        repo: to be published.
        hide: the split whose masks it hides; None: it shows all.

    Raises:
        UserError: There is such a repository; names it.
    """
    for other, hidden in _published(folder).items():
        if other.casefold() == repo.casefold() or hidden == hide:
            continue
        unless = f"if that is not so any more, delete {folder / PUBLISHED}"
        if hidden:
            raise UserError(
                f"{other} hides the masks of {hidden}, which {repo} would show: add --hide-masks {hidden}; {unless}"
            )
        raise UserError(
            f"{other} was published with the masks of {hide}: hiding what others may have is worthless; {unless}"
        )


def note_published(folder: Path, repo: str, hide: str | None) -> None:
    """Write down in a folder that a repository is published from it; arguments as for `check_published_alike`."""
    write_json(folder / PUBLISHED, _published(folder) | {repo: hide})


def _published(folder: Path) -> dict[str, str | None]:
    """Return {repository: the split whose masks it hides, None: it shows all}, of a folder."""
    path = folder / PUBLISHED
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{path} was changed; delete it if none of its repositories hides masks")
    return content
