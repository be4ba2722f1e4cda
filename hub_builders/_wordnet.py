"""Derive `targets/groups_imagenet.json` from WordNet's relation and ImageNet's class index (P3, appendix B).

Example:
  python -m saliency_bench.hub_builders._wordnet FOLDER

FOLDER holds `wordnet.is_a.txt` (a line "hypernym hyponym" per edge) and `imagenet_class_index.json` ({"0": [WordNet id,
name]}). The table includes WordNet's licence, as the licence requires.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import saliency_bench.targets
from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_text

ENOUGH, MOST = 5, 50  # classes in a group; without the upper end some of ImageNet's would have 522
TABLE = Path(saliency_bench.targets.__file__).parent / "groups_imagenet.json"
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


def derive(edges: Iterable[tuple[str, str]], leaves: Iterable[str]) -> dict[str, list[str]]:
    """Return {group: its leaves}: for each leaf its smallest hypernym of 5 to 50 leaves, of equal ones the lowest id.

    A leaf without one takes the leaves of its largest hypernym of fewer, if any, and is joined by the groups of its
    neighbours, the leaves nearest in the order of WordNet ids (of two equally near the lower one first), until five are
    together; a neighbour with whose group there would be more than 50 is passed over. The group is then called by the
    ids of what was joined. Groups may nest; those of several leaves come once.
    """
    parents: Mapping[str, set[str]] = defaultdict(set)
    for hypernym, hyponym in edges:
        parents[hyponym].add(hypernym)
    ordered = sorted(leaves)
    above = {leaf: _above(leaf, parents) for leaf in ordered}
    below: dict[str, set[str]] = defaultdict(set)
    for leaf in ordered:
        for hypernym in above[leaf]:
            below[hypernym].add(leaf)
    group_of: dict[str, str | None] = {}  # the hypernym that is a leaf's group, if any
    for leaf in ordered:
        sizes = [(len(below[hypernym]), hypernym) for hypernym in above[leaf]]
        group_of[leaf] = min(((size, name) for size, name in sizes if ENOUGH <= size <= MOST), default=(0, None))[1]
    groups = {name: sorted(below[name]) for name in set(group_of.values()) if name is not None}
    for leaf in (leaf for leaf in ordered if group_of[leaf] is None):
        name, members = _joined(leaf, ordered, group_of, above, below)
        groups.setdefault(name, members)
    return dict(sorted(groups.items()))


def _above(leaf: str, parents: Mapping[str, set[str]]) -> set[str]:
    """Return all hypernyms of a synset."""
    hypernyms: set[str] = set()
    pending = [leaf]
    while pending:
        new = parents[pending.pop()] - hypernyms
        hypernyms |= new
        pending += new
    return hypernyms


def _joined(leaf: str, ordered: list[str], group_of: dict, above: dict, below: dict) -> tuple[str, list[str]]:
    """Return the name and leaves of the group that joins a leaf without one to its neighbours.

    Args:
        leaf: The leaf.
        ordered: All leaves in the order of their ids.
        group_of: {leaf: its group, or None}.
        above: {leaf: its hypernyms}.
        below: {hypernym: its leaves}.
    """

    def largest(node: str) -> str:
        """Return the group of a leaf, or else its largest hypernym of fewer than five, or itself."""
        small = [(-len(below[name]), name) for name in above[node] if len(below[name]) < ENOUGH]
        return group_of[node] or min(small, default=(0, node))[1]

    index = ordered.index(leaf)
    near = sorted(range(len(ordered)), key=lambda other: (abs(other - index), other))
    names: list[str] = []
    members: set[str] = set()
    for other in near:
        if len(members) >= ENOUGH:
            break
        if ordered[other] not in members:
            name = largest(ordered[other])
            more = members | below.get(name, {ordered[other]})
            if len(more) <= MOST:
                names.append(name)
                members = more
    return "+".join(sorted(names)), sorted(members)


def table_of(folder: Path) -> dict:
    """Return the table of a folder with both files; UserError if it cannot be read."""
    try:
        index = json.loads((folder / "imagenet_class_index.json").read_text(encoding="utf-8"))
        lines = (folder / "wordnet.is_a.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} does not hold WordNet's relation and ImageNet's classes: {error}") from error
    number = {synset: int(key) for key, (synset, _) in index.items()}
    edges = ((line.split()[0], line.split()[1]) for line in lines if line.strip())
    groups = derive(edges, number)
    return {
        "about": " ".join(NOTICE.split()),
        "classes": [index[str(key)][1] for key in range(len(index))],
        "groups": {name: sorted(number[leaf] for leaf in members) for name, members in groups.items()},
        "joined": [name for name in groups if "+" in name],
    }


def main(folder: str) -> None:
    """Write the table beside this file."""
    write_text(TABLE, json.dumps(table_of(Path(folder)), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
