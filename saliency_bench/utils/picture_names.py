"""The pictures that lists and annotation programs mean by what they write as a name.

They write paths of other machines, with other folders above, backslashes, percent signs or addresses, and Label Studio
puts eight digits before the name of an upload (`ab12cd34-photo.png`). Some systems store ü as one sign, others as u and
two dots; such names are equal here.
"""

import re
import unicodedata
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


def composed(name: str) -> str:
    """Return a name with each letter and its accent as one sign."""
    return unicodedata.normalize("NFC", name)


def folders_of(name: str) -> tuple[str, ...]:
    """Return the folders of a path."""
    return PurePosixPath(composed(plain(name))).parts[:-1]


class Sides:
    """Paths, and those of the pictures that they may mean: which folders each side tells apart."""

    def __init__(self, names: Iterable[str], pictures: Iterable[str]):
        self.paths = {folders_of(name) for name in names}
        self.folders = {folder for picture in pictures for folder in folders_of(picture)}

    def contradict(self, name: str, picture: str) -> bool:
        """Return whether their folders say that a path does not mean a picture, though the last parts are equal.

        A path of another machine may have further folders in front. But `dog/1.jpg` does not mean `cat/1.jpg` where
        `dog` is the folder of another picture, or where there is also a path in `cat`. Folders of uploads say nothing.
        """
        here, there = folders_of(name), folders_of(picture)
        further, lacking = set(here) - set(there), set(there) - set(here)
        if UPLOADED.match(PurePosixPath(plain(name)).name):
            return False
        swapped = (
            (*here[:place], folder, *here[place + 1 :])
            for place, own in enumerate(here)
            for folder in lacking
            if own in further
        )
        return not further.isdisjoint(self.folders) or any(path in self.paths for path in swapped)


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
    return re.sub(r"[^-\w.]", "", composed(name).rpartition("/")[2].strip().replace(" ", "_"))


@dataclass(frozen=True)
class Meant:
    """The picture that a name stands for; "" without one, why, and which it may be."""

    picture: str = ""
    lacks: str = ""
    perhaps: tuple[str, ...] = ()


class Names:
    """The pictures that a list may mean: by their path or its end, with or without ending, or with another (.JPG)."""

    def __init__(self, names: Iterable[str]):
        self.names = list(names)
        self.known: dict[str, list[str]] = {}
        self.cleaned: dict[str, list[str]] = {}
        for name in self.names:
            self.add(name, name)

    def add(self, alias: str, name: str) -> None:
        """Know a picture by another path, too."""
        for end in {end for form in (alias, stem(alias)) for end in ends_of(form)}:
            self.known.setdefault(composed(end), []).append(name)
        for form in {_cleaned(alias), _cleaned(stem(alias))}:
            self.cleaned.setdefault(form, []).append(name)

    def called(self, given: str) -> list[str]:
        """Return all that have this name."""
        has_ending = PurePosixPath(given).suffix.lower() in ENDINGS
        form = composed(given)
        exact = self.known.get(form, [])
        return [given] if given in exact else exact or (self.known.get(stem(form), []) if has_ending else [])

    def meant(self, given: str) -> list[str]:
        """Return all that a program may mean: those that have the longest end of what it wrote."""
        for upload in (False, True):
            for form in map(without_upload, _forms(given)) if upload else _forms(given):
                for end in filter(None, ends_of(form)):
                    if found := self.called(end):
                        return found
        last = composed(plain(unquote(given)).rpartition("/")[2])
        uploaded = without_upload(last)
        return [] if uploaded == last else self.cleaned.get(uploaded) or self.cleaned.get(stem(uploaded), [])

    def resolved(self, given: Iterable[str]) -> dict[str, Meant]:
        """Return the picture of each name; of several names of one picture, the one that is most like its path.

        Where two are equally like it, nothing says which one it is, and neither has it.
        """
        given = list(given)
        sides = Sides(given, self.names)
        found = {
            name: [picture for picture in dict.fromkeys(self.meant(name)) if not sides.contradict(name, picture)]
            for name in given
        }
        ranks = {name: self._rank(name, pictures[0]) for name, pictures in found.items() if len(pictures) == 1}
        best: dict[str, int] = {}
        for name, rank in ranks.items():
            best[found[name][0]] = min(rank, best.get(found[name][0], rank))
        times = Counter(found[name][0] for name, rank in ranks.items() if rank == best[found[name][0]])
        meant = {}
        for name, pictures in found.items():
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
