"""Find the images that lists and annotation programs refer to.

Lists may contain URLs, or paths from other machines with different parent folders, backslashes or percent escapes.
Label Studio adds eight hexadecimal digits in front of the name of an uploaded file (`ab12cd34-photo.png`). Some systems
store ü as one character, others as u with a combining mark. The two forms are treated as equal.
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
    """Return a path without its file extension."""
    return str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name


def ends_of(name: str) -> list[str]:
    """Return a path, the path without its first folder, the path without its first two folders, and so on."""
    parts = name.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def plain(name: str) -> str:
    """Return a path with "/" as separator and without "./" at its start."""
    return name.replace("\\", "/").removeprefix("./")


def composed(name: str) -> str:
    """Convert a name to Unicode's composed form, in which a letter and its accent are one character."""
    return unicodedata.normalize("NFC", name)


def folders_of(name: str) -> tuple[str, ...]:
    """Return the names of all folders in a path."""
    return PurePosixPath(composed(plain(name))).parts[:-1]


class Sides:
    """Compares the folders in a list of paths with the folders of the images that the paths may refer to."""

    def __init__(self, names: Iterable[str], pictures: Iterable[str]):
        self.paths = {folders_of(name) for name in names}
        self.folders = {folder for picture in pictures for folder in folders_of(picture)}

    def contradict(self, name: str, picture: str) -> bool:
        """Return whether the folders in a path rule out an image that has the same file name.

        A path from another machine may have additional parent folders. However, `dog/1.jpg` does not refer to
        `cat/1.jpg` if `dog` is the folder of another image, or if the list also contains a path in `cat`. Folders of
        uploaded files are ignored.
        """
        here, there = folders_of(name), folders_of(picture)
        further, lacking = set(here) - set(there), set(there) - set(here)
        if UPLOADED.match(PurePosixPath(plain(name)).name):
            return False
        swapped = (
            (*here[:place], folder, *here[place + 1 :])
            for place, part in enumerate(here)
            for folder in lacking
            if part in further
        )
        return not further.isdisjoint(self.folders) or any(path in self.paths for path in swapped)


def without_upload(name: str) -> str:
    """Return a path without the prefix that Label Studio adds to uploaded files."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{UPLOADED.sub('', last, count=1) if UPLOADED.match(last) else last}"


def _forms(name: str) -> Iterator[str]:
    """Yield the paths that a name may refer to, starting with the most literal one."""
    path = plain(name)
    query = IN_QUERY.search(path)
    for form in dict.fromkeys([path, *([query[1]] if query else []), re.split(r"[?#]", path)[0]]):
        yield form
        yield plain(unquote(form))


def _cleaned(name: str) -> str:
    """Return the name under which Django stores an uploaded file: without spaces and most punctuation."""
    return re.sub(r"[^-\w.]", "", composed(name).rpartition("/")[2].strip().replace(" ", "_"))


@dataclass(frozen=True)
class Meant:
    """The image that a name refers to.

    Attributes:
        picture: Path of the image, or "" if there is no unique image.
        lacks: Reason why there is no unique image, or "".
        perhaps: Candidates, if there is no unique image.
    """

    picture: str = ""
    lacks: str = ""
    perhaps: tuple[str, ...] = ()


class PictureNames:
    """Index of images. It finds an image by its path or by the end of its path, regardless of the file extension."""

    def __init__(self, names: Iterable[str]):
        self.names = list(names)
        self.known: dict[str, list[str]] = {}
        self.cleaned: dict[str, list[str]] = {}
        for name in self.names:
            self.add(name, name)

    def add(self, alias: str, name: str) -> None:
        """Add another path for an image."""
        for end in {end for form in (alias, stem(alias)) for end in ends_of(form)}:
            self.known.setdefault(composed(end), []).append(name)
        for form in {_cleaned(alias), _cleaned(stem(alias))}:
            self.cleaned.setdefault(form, []).append(name)

    def called(self, given: str) -> list[str]:
        """Return all images with this name."""
        has_ending = PurePosixPath(given).suffix.lower() in ENDINGS
        form = composed(given)
        exact = self.known.get(form, [])
        return [given] if given in exact else exact or (self.known.get(stem(form), []) if has_ending else [])

    def meant(self, given: str) -> list[str]:
        """Return all images that match the longest possible end of a path. The path may come from another machine."""
        for upload in (False, True):
            for form in map(without_upload, _forms(given)) if upload else _forms(given):
                for end in filter(None, ends_of(form)):
                    if pictures := self.called(end):
                        return pictures
        last = composed(plain(unquote(given)).rpartition("/")[2])
        uploaded = without_upload(last)
        return [] if uploaded == last else self.cleaned.get(uploaded) or self.cleaned.get(stem(uploaded), [])

    def resolved(self, given: Iterable[str]) -> dict[str, Meant]:
        """Return {name: image}. An image that several names match is assigned to the name closest to its path.

        If two names are equally close, the image is assigned to neither.
        """
        given = list(given)
        sides = Sides(given, self.names)
        matches = {
            name: [picture for picture in dict.fromkeys(self.meant(name)) if not sides.contradict(name, picture)]
            for name in given
        }
        ranks = {name: self._rank(name, pictures[0]) for name, pictures in matches.items() if len(pictures) == 1}
        best: dict[str, int] = {}
        for name, rank in ranks.items():
            best[matches[name][0]] = min(rank, best.get(matches[name][0], rank))
        times = Counter(matches[name][0] for name, rank in ranks.items() if rank == best[matches[name][0]])
        meant = {}
        for name, pictures in matches.items():
            if len(pictures) != 1:
                meant[name] = Meant(lacks="several images" if pictures else "no image", perhaps=tuple(pictures))
            elif ranks[name] == best[pictures[0]] and times[pictures[0]] == 1:
                meant[name] = Meant(pictures[0])
            else:
                meant[name] = Meant(lacks="no image of its own", perhaps=tuple(pictures))
        return meant

    def _rank(self, given: str, picture: str) -> int:
        """Return how much a name differs from an image's path.

        The result is 0 for the same path, 1 if only the folders or the extension differ, and 2 otherwise.
        """
        return 0 if plain(given) == picture else 1 if picture in self.called(plain(given)) else 2
