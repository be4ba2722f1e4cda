"""Derive groups of ImageNet's classes from WordNet (Elisha et al. 2025, appendix B): `targets/groups_imagenet.json`.

Example:
  python -m saliency_bench.hub_builders._wordnet dict/data.noun

`data.noun` is the file of nouns of WordNet 3.0 (wordnet.princeton.edu, folder `dict/`). The output file includes
WordNet's licence, as the licence requires.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import saliency_bench.compute.targets
from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_text

ENOUGH, MOST = 5, 50  # minimum and maximum number of classes in a group; some groups would otherwise have 522 classes
TABLE = Path(saliency_bench.compute.targets.__file__).parent / "groups_imagenet.json"
NOTICE = """Derived from WordNet 3.0 under this licence: This software and database is being provided to you, the
LICENSEE, by Princeton University under the following license. By obtaining, using and/or copying this software and
database, you agree that you have read, understood, and will comply with these terms and conditions: Permission to use,
copy, modify and distribute this software and database and its documentation for any purpose and without fee or royalty
is hereby granted, provided that you agree to comply with the following copyright notice and statements, including the
disclaimer, and that the same appear on ALL copies of the software, database and documentation, including modifications
that you make for internal use or for distribution. WordNet 3.0 Copyright 2006 by Princeton University. All rights
reserved. THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS" AND PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR
WARRANTIES, EXPRESS OR IMPLIED. BY WAY OF EXAMPLE, BUT NOT LIMITATION, PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR
WARRANTIES OF MERCHANTABILITY OR FITNESS FOR ANY PARTICULAR PURPOSE OR THAT THE USE OF THE LICENSED SOFTWARE, DATABASE
OR DOCUMENTATION WILL NOT INFRINGE ANY THIRD PARTY PATENTS, COPYRIGHTS, TRADEMARKS OR OTHER RIGHTS. The name of
Princeton University or Princeton may not be used in advertising or publicity pertaining to distribution of the
software and/or database. Title to copyright in this software, database and any associated documentation shall at all
times remain with Princeton University and LICENSEE agrees to preserve same."""


class WordNetGroup(NamedTuple):
    """A group of classes.

    Attributes:
        categories: WordNet id of the category that forms the group, or ids of all merged categories.
        members: Classes of the group.
        made_for: Classes that a merged group was created for, or () for a single category.
    """

    categories: tuple[str, ...]
    members: tuple[str, ...]
    made_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hierarchy:
    """The part of WordNet's "is a" hierarchy above a set of classes.

    Attributes:
        above: {class or category: the class or category and all its hypernyms}.
        below: {category: its classes}. Each class is also a category that contains only itself.
    """

    above: Mapping[str, frozenset[str]]
    below: Mapping[str, frozenset[str]]

    def size(self, category: str) -> int:
        """Return the number of classes in a category."""
        return len(self.below[category])

    def distance(self, first: str, second: str) -> int:
        """Return how many categories are above (or equal to) exactly one of the two given categories.

        In a tree, this is the number of steps between the two categories. If a category has several hypernyms, all are
        counted.
        """
        return len(self.above[first] ^ self.above[second])

    def part_of(self, leaf: str, frame: str | None) -> str:
        """Return the category that the class `leaf` contributes to a merged group.

        This is the smallest category inside `frame` with 5 to 50 classes. If there is none, it is the largest category
        with fewer than 5 classes. If several are equally good, the most general one is returned, then the one with the
        lowest id.
        """
        inside = [name for name in self.above[leaf] if frame is None or frame in self.above[name] - {name}]
        sized = [(self.size(name), len(self.above[name]), name) for name in inside]
        groups = [entry for entry in sized if ENOUGH <= entry[0] <= MOST]
        smaller = [(-size, depth, name) for size, depth, name in sized if size < ENOUGH]
        return min(groups or smaller)[-1]


def hierarchy(edges: Iterable[tuple[str, str]], leaves: Iterable[str]) -> Hierarchy:
    """Build the hierarchy above a set of classes from edges (hypernym, hyponym)."""
    parents: dict[str, set[str]] = defaultdict(set)
    for hypernym, hyponym in edges:
        parents[hyponym].add(hypernym)
    above: dict[str, frozenset[str]] = {}

    def climb(name: str) -> frozenset[str]:
        """Return a category and all its hypernyms, and cache the result."""
        if name not in above:
            above[name] = frozenset({name}).union(*(climb(parent) for parent in parents[name]))
        return above[name]

    below: dict[str, set[str]] = defaultdict(set)
    for leaf in leaves:
        for name in climb(leaf):
            below[name].add(leaf)
    return Hierarchy(above, {name: frozenset(classes) for name, classes in below.items()})


def derive(edges: Iterable[tuple[str, str]], leaves: Iterable[str]) -> list[WordNetGroup]:
    """Return the groups of all classes, sorted by WordNet id.

    The group of a class is the smallest category with 5 to 50 classes that contains the class. Ties go to the lowest
    id. If there is no such category, the class is merged with its neighbours (see `merge`). Groups may nest or overlap.
    A group that several classes share is returned once.
    """
    ordered = sorted(leaves)
    tree = hierarchy(edges, ordered)
    groups: set[tuple[str, ...]] = set()
    made_for: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for leaf in ordered:
        sized = [(tree.size(name), name) for name in tree.above[leaf] if ENOUGH <= tree.size(name) <= MOST]
        if sized:
            groups.add((min(sized)[1],))
        else:
            made_for[merge(leaf, tree)].append(leaf)
    return [
        WordNetGroup(
            names, tuple(sorted(frozenset().union(*(tree.below[name] for name in names)))), tuple(made_for[names])
        )
        for names in sorted(groups | set(made_for))
    ]


def merge(leaf: str, tree: Hierarchy) -> tuple[str, ...]:
    """Return the categories whose union is the group of a class that is in no category with 5 to 50 classes.

    All these categories are inside the frame: the smallest category with more than 50 classes that contains the class
    (ties go to the lowest id). Each class in the frame contributes a category (`part_of`). The category of the given
    class is added first, then the nearest categories, until the group has five classes. Among categories at the same
    distance, the smallest is added first, then the category with the nearest WordNet id, because related animals have
    adjacent ids. A category that would make the group exceed 50 classes is skipped.
    """
    above_cap = [(tree.size(name), name) for name in tree.above[leaf] if tree.size(name) > MOST]
    frame = min(above_cap)[1] if above_cap else None
    start = tree.part_of(leaf, frame)
    leaves = tree.below[frame] if frame else {name for name, classes in tree.below.items() if name in classes}

    def nearness(name: str) -> tuple[int, int, int, str]:
        """Return a sort key that puts the categories closest to `start` first."""
        return tree.distance(start, name), tree.size(name), abs(number_of(start) - number_of(name)), name

    names, members = [start], tree.below[start]
    for name in sorted({tree.part_of(other, frame) for other in leaves} - {start}, key=nearness):
        if len(members) >= ENOUGH:
            break
        union = members | tree.below[name]
        if len(union) <= MOST and union != members:
            names.append(name)
            members = union
    return tuple(sorted(names))


def number_of(wnid: str) -> int:
    """Return the number of a WordNet id."""
    return int(wnid.removeprefix("n"))


def read_nouns(path: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Read WordNet's `data.noun` and return ({WordNet id: name}, edges (hypernym, hyponym)).

    The format of a line is "offset file type count word id word id ... pointers symbol offset type source/target ... |
    gloss". The number of words, `count`, is hexadecimal. The symbol "@" marks a pointer to a hypernym.

    Raises:
        UserError: The file is not `data.noun`.
    """
    names, edges = {}, []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):  # skip the licence
                continue
            fields = line.partition(" | ")[0].split()
            wnid, end = f"n{fields[0]}", 4 + 2 * int(fields[3], 16)
            names[wnid] = fields[4]
            pointers = fields[end + 1 : end + 1 + 4 * int(fields[end])]
            edges += [(f"n{pointers[at + 1]}", wnid) for at in range(0, len(pointers), 4) if pointers[at] == "@"]
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{path} is not data.noun of WordNet 3.0 (wordnet.princeton.edu): {error}") from error
    return names, edges


def table_of(names: Mapping[str, str], edges: Iterable[tuple[str, str]], wnids: Sequence[str]) -> dict:
    """Return the content of the output file: the groups of the classes with these WordNet ids.

    A group is named after its categories. If several categories contain the same classes, the name of the most specific
    one is used; for a single class, this is the class itself.

    Raises:
        UserError: WordNet does not contain one of the ids.
    """
    if missing := [wnid for wnid in wnids if wnid not in names]:
        raise UserError(f"{missing[0]} is not a noun in this WordNet; use version 3.0")
    edges = list(edges)
    tree = hierarchy(edges, wnids)
    number = {wnid: index for index, wnid in enumerate(wnids)}
    groups = derive(edges, wnids)

    def label(category: str) -> str:
        leaves = tree.below[category]
        same = [name for name in tree.above[min(leaves)] if tree.below[name] == leaves]
        return names[max(same, key=lambda name: (len(tree.above[name]), name))].replace("_", " ")

    plain = [" + ".join(map(label, group.categories)) for group in groups]
    called = [
        name if plain.count(name) == 1 else f"{name} ({', '.join(group.categories)})"
        for name, group in zip(plain, groups, strict=True)
    ]
    return {
        "about": " ".join(NOTICE.split()),
        "classes": [names[wnid] for wnid in wnids],
        "wnids": list(wnids),
        "groups": {name: [number[leaf] for leaf in group.members] for name, group in zip(called, groups, strict=True)},
        "categories": {name: list(group.categories) for name, group in zip(called, groups, strict=True)},
        "joined": {
            name: [number[leaf] for leaf in group.made_for]
            for name, group in zip(called, groups, strict=True)
            if group.made_for
        },
    }


def main(path: str) -> None:
    """Write the file of groups. The classes in the file are in the order that pretrained networks use."""
    from timm.data import ImageNetInfo

    names, edges = read_nouns(Path(path))
    write_text(TABLE, json.dumps(table_of(names, edges, ImageNetInfo().label_names()), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
