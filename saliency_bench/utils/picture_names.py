"""Find the pictures that lists and annotation programs refer to.

They may store paths from other machines, with other parent folders, backslashes, percent escapes or URLs, and Label
Studio puts eight hexadecimal digits before the name of an upload (`ab12cd34-photo.png`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

from saliency_bench.utils.pictures import ENDINGS

UPLOADED = re.compile(r"[0-9a-f]{8}-(?=.)")
IN_QUERY = re.compile(r"[?&]d=([^&#]+)")  # Label Studio: /data/local-files/?d=PATH


def stem(name: str) -> str:
    """Return a path without its file extension."""
    return str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name


def ends_of(name: str) -> list[str]:
    """Return a path and all its ends (without the first folder, the first two ...), longest first."""
    parts = name.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def plain(name: str) -> str:
    """Return a path with "/" as separator and without "./" at its start."""
    return name.replace("\\", "/").removeprefix("./")


def without_upload(name: str) -> str:
    """Return a path without the prefix that Label Studio gives uploads."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{UPLOADED.sub('', last, count=1) if UPLOADED.match(last) else last}"


def _forms(name: str) -> Iterator[str]:
    """Yield the paths that a name may refer to, the most literal first."""
    path = plain(name)
    query = IN_QUERY.search(path)
    for form in dict.fromkeys([path, *([query[1]] if query else []), re.split(r"[?#]", path)[0]]):
        yield form
        yield plain(unquote(form))


def _cleaned(name: str) -> str:
    """Return the last part of a path as Django stores an upload: without spaces and most punctuation."""
    return re.sub(r"[^-\w.]", "", name.rpartition("/")[2].strip().replace(" ", "_"))


@dataclass(frozen=True)
class Meant:
    """The picture that a name refers to, or "", with the reason and the candidates."""

    picture: str = ""
    lacks: str = ""
    perhaps: tuple[str, ...] = ()


class Names:
    """Look up pictures by their path or its end, with, without or with another file extension (.JPG)."""

    def __init__(self, names: Iterable[str]):
        self.known: dict[str, list[str]] = {}
        self.cleaned: dict[str, list[str]] = {}
        for name in names:
            self.add(name, name)

    def add(self, alias: str, name: str) -> None:
        """Add another path of a picture."""
        for end in {end for form in (alias, stem(alias)) for end in ends_of(form)}:
            self.known.setdefault(end, []).append(name)
        for form in {_cleaned(alias), _cleaned(stem(alias))}:
            self.cleaned.setdefault(form, []).append(name)

    def called(self, given: str) -> list[str]:
        """Return all pictures with this name."""
        has_ending = PurePosixPath(given).suffix.lower() in ENDINGS
        exact = self.known.get(given, [])
        return [given] if given in exact else exact or (self.known.get(stem(given), []) if has_ending else [])

    def meant(self, given: str) -> list[str]:
        """Return all pictures that match the longest end of the path that a program wrote."""
        for upload in (False, True):
            for form in map(without_upload, _forms(given)) if upload else _forms(given):
                for end in filter(None, ends_of(form)):
                    if pictures := self.called(end):
                        return pictures
        last = plain(unquote(given)).rpartition("/")[2]
        uploaded = without_upload(last)
        return [] if uploaded == last else self.cleaned.get(uploaded) or self.cleaned.get(stem(uploaded), [])

    def resolved(self, given: Iterable[str]) -> dict[str, Meant]:
        """Return the picture of each name. If several names match a picture, the name closest to its path gets it.

        If two names are equally close, neither gets the picture.
        """
        matches = {name: list(dict.fromkeys(self.meant(name))) for name in given}
        ranks = {name: self._rank(name, pictures[0]) for name, pictures in matches.items() if len(pictures) == 1}
        best: dict[str, int] = {}
        for name, rank in ranks.items():
            best[matches[name][0]] = min(rank, best.get(matches[name][0], rank))
        times = Counter(matches[name][0] for name, rank in ranks.items() if rank == best[matches[name][0]])
        meant = {}
        for name, pictures in matches.items():
            if len(pictures) != 1:
                meant[name] = Meant(lacks="several pictures" if pictures else "no picture", perhaps=tuple(pictures))
            elif ranks[name] == best[pictures[0]] and times[pictures[0]] == 1:
                meant[name] = Meant(pictures[0])
            else:
                meant[name] = Meant(lacks="no picture of its own", perhaps=tuple(pictures))
        return meant

    def _rank(self, given: str, picture: str) -> int:
        """Return how far a name is from a picture's path: 0 equal, 1 other folders or extension, 2 anything else."""
        return 0 if plain(given) == picture else 1 if picture in self.called(plain(given)) else 2
