"""Define groups of classes, for targets such as "why a car?" and "why this car and not a different one?".

Tables of groups are stored next to this file as `groups_NAME.json` for ImageNet (from WordNet, see
`hub_builders/_wordnet.py`), the breeds of Oxford-IIIT Pet (species), PASCAL VOC (its four super-classes) and shapes-xai
(round and angular outlines). A table is selected by its class names, so it applies to every dataset or model with these
classes. Other datasets and models need a file.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType

import numpy as np

from saliency_bench.compute.targets.label_maps import Members, index_of
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.csv_text import csv_rows
from saliency_bench.utils.files import parse_json, read_bytes

HERE = Path(__file__).parent
ALIKE = 0.99  # share of names that must match in order: libraries spell some ImageNet classes differently


@dataclass(frozen=True)
class ClassGroups:
    """Groups of a classifier's classes. Groups may be nested and may overlap.

    Attributes:
        name: Name of the table or file.
        members: Class numbers of each group.
        called: Name of each group.
        joined: {index of a merged group: classes without another group, for which the merged group was created}.
    """

    name: str
    members: tuple[tuple[int, ...], ...]
    called: tuple[str, ...] = ()
    joined: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)

    def group_of(self, label: int) -> tuple[int, ...]:
        """Return the smallest group that contains a class, or () if no group does.

        If several groups are equally small, the first is returned. A merged group is considered only for the classes
        that it was created for.
        """
        index = self.index_of_group(label)
        return () if index is None else self.members[index]

    def index_of_group(self, label: int) -> int | None:
        """Return the index of the group that `group_of` returns for a class."""
        groups = [
            (len(group), index) for index, group in enumerate(self.members) if label in self.joined.get(index, group)
        ]
        return min(groups)[1] if groups else None

    def runner_up(self, label: int, scores: np.ndarray) -> int | None:
        """Return the highest-scoring other member of the class's group, or None if there is no other member."""
        others = [member for member in self.group_of(label) if member != label]
        return max(others, key=lambda member: scores[member], default=None)

    def rival(self, label: int, scores: np.ndarray) -> tuple[int, ...]:
        """Return the group with the highest mean score among those disjoint from the group of `label`, or ().

        If several are tied, the first is returned. A merged group is never the rival, because it does not represent a
        single concept.
        """
        members = set(self.group_of(label))
        disjoint = [group for index, group in enumerate(self.members)
                    if members and group and index not in self.joined and members.isdisjoint(group)]  # fmt: skip
        return max(disjoint, key=lambda group: float(scores[list(group)].mean()), default=())

    @property
    def identity(self) -> str:
        """Hash of the members. It is part of cell ids."""
        content = [self.members, sorted(self.joined.items())] if self.joined else self.members
        return blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def load_groups(
    given: ClassGroups | Mapping | str | Path | None,
    names: Sequence[str] | None,
    classes: int,
    dataset: Sequence[str] = (),
    members: Members | tuple[()] = (),
) -> ClassGroups | None:
    """Return the groups of a classifier's classes, or None if none are given or known.

    Args:
        given: {group: [class, ...]}, with classes by name or number, or a JSON or CSV file of groups (CSV with the
            columns "class" and "group"). The default is the stored table with the classifier's classes, else the table
            with the dataset's classes.
        names: Names of the classifier's classes.
        classes: Number of the classifier's classes.
        dataset: Names of the dataset's classes.
        members: The classifier's classes for each class of the dataset.

    Raises:
        UserError: A file cannot be read, a group is empty, or a class does not exist in the classifier.
    """
    if isinstance(given, ClassGroups):
        return given
    if given is not None:
        listed = dict(given) if isinstance(given, Mapping) else _read(Path(given))
        model = None if names is None else list(names)
        name = "own" if isinstance(given, Mapping) else Path(given).name
        if not listed or (empty := next((group for group, entries in listed.items() if not entries), None)):
            raise UserError(f"the groups of {name} contain no class" + (f" in {empty}" if listed else ""))
        return _groups(name, {key: [index_of(member, model, classes) for member in listed[key]] for key in listed})
    themselves = [[number] for number in range(classes)]
    for class_names, model_classes in ((names or (), themselves), (dataset, members)):
        for name, table in _tables().items():
            if len(class_names) == len(model_classes) and (positions := places_in(class_names, table)):
                # Class of the table -> class of the names -> classes of the model.
                groups, joined = (
                    {key: [number for index in group for number in model_classes[positions[index]]]
                     for key, group in listed.items()}
                    for listed in (table["groups"], table.get("joined", {}))
                )  # fmt: skip
                return _groups(name, groups, joined)
    return None


def _groups(
    name: str, members: Mapping[str, list[int]], joined: Mapping[str, list[int]] = MappingProxyType({})
) -> ClassGroups:
    """Create groups from {name: class numbers}. `joined` maps merged groups to the classes that need them."""
    # Sort members, so that the identity does not depend on the order in a file.
    made_for = {index: tuple(sorted(joined[group])) for index, group in enumerate(members) if group in joined}
    return ClassGroups(name, tuple(tuple(sorted(set(group))) for group in members.values()), tuple(members), made_for)


@cache
def _tables() -> dict[str, dict]:
    """Return the bundled tables, {name: {"classes": class names, "groups": {group: class numbers}}}."""
    paths = sorted(HERE.glob("groups_*.json"))
    return {path.stem.removeprefix("groups_"): json.loads(path.read_text(encoding="utf-8")) for path in paths}


def places_in(names: Sequence[str], table: dict) -> list[int]:
    """Return the index in `names` of each class of a table, or [] if `names` and the table have different classes.

    A few ImageNet classes may be spelled differently if all names are in ImageNet's order.
    """
    keys, expected = [key_of(name) for name in names], [key_of(name) for name in table["classes"]]
    if len(keys) != len(expected):
        return []
    if sum(key == other for key, other in zip(keys, expected, strict=True)) >= ALIKE * len(expected):
        return list(range(len(expected)))
    is_permutation = len(set(expected)) == len(expected) and set(keys) == set(expected)
    return [keys.index(key) for key in expected] if is_permutation else []


def key_of(name: str) -> str:
    """Normalise a class name. "Tench, Tinca tinca" and "tench" become equal, as do "tv/monitor" and "tvmonitor"."""
    return "".join(sign for sign in name.partition(",")[0].lower() if sign.isalnum())


def _read(path: Path) -> dict[str, list]:
    """Read {group: [class, ...]} from a JSON or CSV file."""
    rows = path.suffix.lower() == ".csv"
    try:
        text = read_bytes(path).decode("utf-8-sig")
        read = csv_rows(text) if rows else parse_json(text, unique=True)
    except (OSError, ValueError, csv.Error) as error:  # includes text that is not UTF-8
        raise UserError(f"the groups {path} cannot be read: {one_line(error)}") from error
    if rows:
        return _groups_in(read, path)
    if not isinstance(read, dict) or not all(isinstance(entries, list) for entries in read.values()):
        raise UserError(f"the groups file {path} must contain a JSON object {{group: [class, ...]}}")
    return read


def _groups_in(rows: list[dict], path: Path) -> dict[str, list]:
    if not rows or not {"class", "group"} <= set(rows[0]):
        raise UserError(f"the groups file {path} needs the header class,group")
    groups: dict[str, list] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row["class"])
    return groups
