"""Groups of classes, for questions such as "why a car?" and "why this car and not another?".

Tables of groups are stored next to this file as `groups_NAME.json` for ImageNet (from WordNet, see `wordnet.py`), the
breeds of Oxford-IIIT Pet (species), PASCAL VOC (its four super-classes) and shapes-xai (round and angular outlines). A
table is found by the names of the classes, so it applies to every dataset or model with these classes; others need a
file.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.targets.label_maps import Members, index_of
from saliency_bench.utils.files import parse_json, read_bytes

HERE = Path(__file__).parent
ALIKE = 0.99  # share of names that must match in order: libraries spell some ImageNet classes differently


@dataclass(frozen=True)
class ClassGroups:
    """Groups of a classifier's classes, by number; they may nest and overlap.

    called: the name of each. joined: the numbers of groups that were made for classes without one of their own.
    """

    name: str
    members: tuple[tuple[int, ...], ...]
    called: tuple[str, ...] = ()
    joined: frozenset[int] = frozenset()

    def of(self, label: int) -> tuple[int, ...]:
        """The smallest group that contains a class, the first of equal ones; () if none does.

        A joined group counts for classes that are in no other alone.
        """
        held = [(index in self.joined, len(group), index) for index, group in enumerate(self.members) if label in group]
        return self.members[min(held)[2]] if held else ()

    def runner_up(self, label: int, scores: np.ndarray) -> int | None:
        """The other member of the class's group with the highest score; None if it has no other."""
        others = [member for member in self.of(label) if member != label]
        return max(others, key=lambda member: scores[member], default=None)

    def rival(self, label: int, scores: np.ndarray) -> tuple[int, ...]:
        """The group disjoint from the class's with the highest mean score, the first of equal ones; () if none is."""
        own = set(self.of(label))
        apart = [group for group in self.members if own and own.isdisjoint(group)]
        return max(apart, key=lambda group: float(scores[list(group)].mean()), default=())

    @property
    def identity(self) -> str:
        content = [self.members, sorted(self.joined)] if self.joined else self.members
        return blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def load_groups(
    given: ClassGroups | Mapping | str | Path | None,
    names: Sequence[str] | None,
    classes: int,
    dataset: Sequence[str] = (),
    members: Members | tuple[()] = (),
) -> ClassGroups | None:
    """The groups of a classifier with `classes` classes called `names`; None where none are given or known.

    given: {group: [class, ...]}, classes by name or number; or a file of it: JSON, or CSV with the columns class,group.
    Without it the table whose classes are the classifier's is taken, or the one whose classes are the dataset's, read
    through `members` (the classifier's classes of each class of the dataset).

    Raises: UserError for a file that cannot be read, an empty group, a class that the classifier does not have.
    """
    if isinstance(given, ClassGroups):
        return given
    if given is not None:
        listed = dict(given) if isinstance(given, Mapping) else _read(Path(given))
        known = None if names is None else list(names)
        name = "own" if isinstance(given, Mapping) else Path(given).name
        if not listed or (empty := next((group for group, held in listed.items() if not held), None)):
            raise UserError(f"the groups of {name} hold no class" + (f" in {empty}" if listed else ""))
        return _groups(name, {key: [index_of(member, known, classes) for member in listed[key]] for key in listed})
    own = [[number] for number in range(classes)]
    for called, meant in ((names or (), own), (dataset, members)):
        for name, table in _tables().items():
            if len(called) == len(meant) and (places := places_in(called, table)):
                held = {key: [one for place in group for one in meant[places[place]]] for key, group in
                        table["groups"].items()}  # fmt: skip
                return _groups(name, held, table.get("joined", ()))
    return None


def _groups(name: str, members: dict[str, list[int]], joined: Sequence[str] = ()) -> ClassGroups:
    numbers = frozenset(index for index, group in enumerate(members) if group in set(joined))
    return ClassGroups(name, tuple(tuple(sorted(set(group))) for group in members.values()), tuple(members), numbers)


@cache
def _tables() -> dict[str, dict]:
    """{name: {"classes": their names, "groups": {group: numbers of its classes}}}"""
    paths = sorted(HERE.glob("groups_*.json"))
    return {path.stem.removeprefix("groups_"): json.loads(path.read_text(encoding="utf-8")) for path in paths}


def places_in(names: Sequence[str], table: dict) -> list[int]:
    """The index of each class of the table among the names; [] unless they are the table's classes, in any order.

    A few ImageNet classes may be spelled differently if all are in ImageNet's order.
    """
    keys, known = [key_of(name) for name in names], [key_of(name) for name in table["classes"]]
    if len(keys) != len(known):
        return []
    if sum(one == other for one, other in zip(keys, known, strict=True)) >= ALIKE * len(known):
        return list(range(len(known)))
    return [keys.index(key) for key in known] if len(set(known)) == len(known) and set(keys) == set(known) else []


def key_of(name: str) -> str:
    """ "Tench, Tinca tinca" and "tench" are one class, and so are "tv/monitor" and "tvmonitor"."""
    return "".join(sign for sign in name.partition(",")[0].lower() if sign.isalnum())


def _read(path: Path) -> dict[str, list]:
    rows = path.suffix.lower() == ".csv"
    try:
        text = read_bytes(path).decode("utf-8-sig")
        read = list(csv.DictReader(text.splitlines())) if rows else parse_json(text)
    except (OSError, ValueError, csv.Error) as error:  # also text that is not UTF-8
        raise UserError(f"the groups {path} cannot be read: {one_line(error)}") from error
    if rows:
        return _of_rows(read, path)
    if not isinstance(read, dict) or not all(isinstance(held, list) for held in read.values()):
        raise UserError(f"the groups {path} must be an object: {{group: [class, ...]}}")
    return read


def _of_rows(rows: list[dict], path: Path) -> dict[str, list]:
    if not rows or not {"class", "group"} <= set(rows[0]):
        raise UserError(f"the groups {path} need a header with class,group")
    found: dict[str, list] = {}
    for row in rows:
        found.setdefault(row["group"], []).append(row["class"])
    return found
