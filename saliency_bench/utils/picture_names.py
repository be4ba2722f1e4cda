"""The pictures that lists and annotation programs mean by what they write as a name.

They write paths of other machines, with other folders above, backslashes, percent signs or addresses, and Label Studio
puts eight digits before the name of an upload (`ab12cd34-photo.png`).
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
    """Return a path without its ending."""
    return str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name


def ends_of(name: str) -> list[str]:
    """Return a path, and what is left of it without its first folders, longest first."""
    parts = name.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def plain(name: str) -> str:
    """Return a path with "/" and without "./" at its start."""
    return name.replace("\\", "/").removeprefix("./")


def without_upload(name: str) -> str:
    """Return a path without what Label Studio puts before the name of an upload."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{UPLOADED.sub('', last, count=1) if UPLOADED.match(last) else last}"


def _forms(name: str) -> Iterator[str]:
    """Yield the paths that a name may stand for, the most literal first."""
    path = plain(name)
    query = IN_QUERY.search(path)
    for form in dict.fromkeys([path, *([query[1]] if query else []), re.split(r"[?#]", path)[0]]):
        yield form
        yield plain(unquote(form))


def _cleaned(name: str) -> str:
    """Return a path's last part as Django stores an upload of this name: without spaces and most signs."""
    return re.sub(r"[^-\w.]", "", name.rpartition("/")[2].strip().replace(" ", "_"))


@dataclass(frozen=True)
class Meant:
    """The picture that a name stands for; "" without one, why, and which it may be."""

    picture: str = ""
    lacks: str = ""
    perhaps: tuple[str, ...] = ()


class Names:
    """The pictures that a list may mean: by their path or its end, with or without ending, or with another (.JPG)."""

    def __init__(self, names: Iterable[str]):
        self.known: dict[str, list[str]] = {}
        self.cleaned: dict[str, list[str]] = {}
        for name in names:
            self.add(name, name)

    def add(self, alias: str, name: str) -> None:
        """Know a picture by another path, too."""
        for end in {end for form in (alias, stem(alias)) for end in ends_of(form)}:
            self.known.setdefault(end, []).append(name)
        for form in {_cleaned(alias), _cleaned(stem(alias))}:
            self.cleaned.setdefault(form, []).append(name)

    def called(self, given: str) -> list[str]:
        """Return all that have this name."""
        has_ending = PurePosixPath(given).suffix.lower() in ENDINGS
        exact = self.known.get(given, [])
        return [given] if given in exact else exact or (self.known.get(stem(given), []) if has_ending else [])

    def meant(self, given: str) -> list[str]:
        """Return all that a program may mean: those that have the longest end of what it wrote."""
        for upload in (False, True):
            for form in map(without_upload, _forms(given)) if upload else _forms(given):
                for end in filter(None, ends_of(form)):
                    if pictures := self.called(end):
                        return pictures
        last = plain(unquote(given)).rpartition("/")[2]
        uploaded = without_upload(last)
        return [] if uploaded == last else self.cleaned.get(uploaded) or self.cleaned.get(stem(uploaded), [])

    def resolved(self, given: Iterable[str]) -> dict[str, Meant]:
        """Return the picture of each name; of several names of one picture, the one that is most like its path.

        Where two are equally like it, nothing says which one it is, and neither has it.
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
        """Return how unlike a picture's path a name is: 0 equal, 1 its end or its ending, 2 anything else."""
        return 0 if plain(given) == picture else 1 if picture in self.called(plain(given)) else 2
