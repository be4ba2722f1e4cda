"""Groups of classes: WordNet's by a literal second reading of the rule, tables by name, files, and what uses them."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saliency_bench import registry
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _wordnet as wordnet_groups
from saliency_bench.hub_builders._wordnet import derive, table_of
from saliency_bench.targets.class_groups import HERE, ClassGroups, load_groups
from saliency_bench.targets.rules import TargetTerms, load_rule

WORDNET = Path(__file__).parents[3] / "shared" / "data" / "imagenet-hierarchy"
needs_wordnet = pytest.mark.skipif(not WORDNET.is_dir(), reason="WordNet's relation is not here")
NAMES = ["oak", "fir", "elm", "cod", "eel", "cup"]
TREES_AND_FISH = {"trees": ["oak", "fir", 2], "fish": ["cod", "eel"]}


def table(name):
    return json.loads((HERE / f"groups_{name}.json").read_text())


@pytest.mark.slow
@needs_wordnet
def test_the_table_of_imagenet_is_what_the_script_derives():
    assert table_of(WORDNET) == table("imagenet")


@needs_wordnet
def test_imagenet_by_a_literal_second_reading():
    index = json.loads((WORDNET / "imagenet_class_index.json").read_text())
    edges = [line.split() for line in (WORDNET / "wordnet.is_a.txt").read_text().splitlines()]
    leaves = {synset: int(number) for number, (synset, _) in index.items()}
    children = {}
    for above, below in edges:
        children.setdefault(above, []).append(below)

    @cache
    def held(synset):
        found, seen = set(), set()
        stack = list(children.get(synset, []))
        while stack:
            one = stack.pop()
            if one not in seen:
                seen.add(one)
                found |= {leaves[one]} if one in leaves else set()
                stack += children.get(one, [])
        return found

    sized = sorted((len(held(synset)), synset) for synset in children if held(synset))
    ids = sorted(leaves)

    def block(leaf):
        """What a class brings to a union: its group, else its largest smaller hypernym, else itself."""
        inside = [(size, synset) for size, synset in sized if leaves[leaf] in held(synset)]
        if groups := [synset for size, synset in inside if 5 <= size <= 50]:
            return groups[0]
        small = [(-size, synset) for size, synset in inside if size < 5]
        return min(small)[1] if small else leaf

    expected = {}
    for place, leaf in enumerate(ids):
        name = block(leaf)
        members, names = held(name) or {leaves[leaf]}, [name]
        for step in range(1, 1000):
            for other in (place - step, place + step):  # the lower of two equally near first
                if len(members) < 5 and 0 <= other < 1000 and leaves[ids[other]] not in members:
                    more = members | (held(block(ids[other])) or {leaves[ids[other]]})
                    if len(more) <= 50:
                        members, names = more, [*names, block(ids[other])]
        expected["+".join(sorted(names))] = sorted(members)
    assert table("imagenet")["groups"] == dict(sorted(expected.items()))


def test_the_cars_are_those_of_the_paper_and_no_group_is_larger_than_fifty():
    """P3, figure 3: sports car, racer, Model T and seven more."""
    classes = table("imagenet")["classes"]
    groups = load_groups(None, classes, 1000)
    cars = {"ambulance", "beach_wagon", "cab", "convertible", "jeep", "limousine", "minivan", "Model_T", "racer",
            "sports_car"}  # fmt: skip
    assert {classes[member] for member in groups.group_of(classes.index("sports_car"))} == cars
    assert {len(members) for members in groups.members} <= set(range(5, 51))


def test_every_class_of_imagenet_has_a_group_of_five_or_more_and_dogs_are_dogs():
    groups = load_groups(None, table("imagenet")["classes"], 1000)
    assert all(len(groups.group_of(label)) >= 5 for label in range(1000))
    beagle, persian = 162, 283
    assert all(151 <= member <= 268 for member in groups.group_of(beagle))
    assert groups.group_of(persian) == (281, 282, 283, 284, 285)  # the five cats


def test_the_rule_on_a_small_relation():
    """z has a tie of two hypernyms with the same five leaves; a group lies inside another."""
    edges = [("root", "b"), ("b", "a"), ("root", "q")]
    edges += [("a", f"a{i}") for i in range(5)] + [("b", "b0"), ("q", "q0")]
    leaves = [*(f"a{i}" for i in range(5)), "b0", "q0"]
    assert derive(edges, leaves) == {
        "a": [f"a{i}" for i in range(5)],
        "b": [*(f"a{i}" for i in range(5)), "b0"],
        "root": sorted(leaves),
    }
    tied = [("p", "o"), *(("o", f"a{i}") for i in range(5))]
    assert list(derive(tied, [f"a{i}" for i in range(5)])) == ["o"]


def test_a_hypernym_of_more_than_fifty_is_none():
    """a to e are alone below a root of 54: they join; the 49 others have a group, which is too large to join."""
    edges = [("root", leaf) for leaf in "abcde"] + [("root", "q"), *(("q", f"q{i:02}") for i in range(49))]
    groups = derive(edges, [*"abcde", *(f"q{i:02}" for i in range(49))])
    assert groups == {"a+b+c+d+e": list("abcde"), "q": [f"q{i:02}" for i in range(49)]}


def test_a_class_without_a_group_joins_its_neighbours():
    edges = [("p", "n1"), ("p", "n2"), ("q", "n4"), ("q", "n5")]
    # n3 stands alone between two pairs: itself, then the pair of n2, then that of n4
    groups = derive(edges, ["n1", "n2", "n3", "n4", "n5"])
    assert groups == {"n3+p+q": ["n1", "n2", "n3", "n4", "n5"]}
    assert derive([], ["n1", "n2"]) == {"n1+n2": ["n1", "n2"]}  # there are no five


def test_the_script_says_what_is_missing_and_writes_the_table(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=rf"{re.escape(str(tmp_path))}.*WordNet"):
        table_of(tmp_path)
    (tmp_path / "wordnet.is_a.txt").write_text("\n".join(f"n0 n{i}" for i in range(1, 6)))
    index = {str(i - 1): [f"n{i}", f"name {i}"] for i in range(1, 6)}
    (tmp_path / "imagenet_class_index.json").write_text(json.dumps(index))
    monkeypatch.setattr(wordnet_groups, "TABLE", tmp_path / "table.json")
    wordnet_groups.main(str(tmp_path))
    written = json.loads((tmp_path / "table.json").read_text())
    assert written["groups"] == {"n0": [0, 1, 2, 3, 4]}
    assert written["classes"][0] == "name 1"
    assert "Princeton" in written["about"]


def test_tables_are_about_the_classes_of_the_datasets():
    breeds = registry.load("hub_builders", "pet-xai").BREEDS
    pets = table("pets")
    assert pets["classes"] == breeds
    # The source names cats with a capital.
    assert [breeds[place] for place in pets["groups"]["cat"]] == [breed for breed in breeds if breed[0].isupper()]
    assert sorted(pets["groups"]["cat"] + pets["groups"]["dog"]) == list(range(37))
    shapes = table("shapes")
    assert shapes["classes"] == list(registry.load("hub_builders", "shapes-xai").OBJECTS)
    for name in ("shapes", "voc"):
        listed = [place for held in table(name)["groups"].values() for place in held]
        assert sorted(listed) == list(range(len(table(name)["classes"])))


def test_a_table_is_found_by_the_names_of_the_classifier_or_of_the_dataset():
    from torchvision.models import ResNet18_Weights

    spelled = ResNet18_Weights.DEFAULT.meta["categories"]
    assert load_groups(None, spelled, 1000).name == "imagenet"
    assert load_groups(None, [f"{name}, and so on" for name in table("imagenet")["classes"]], 1000).name == "imagenet"
    assert load_groups(None, spelled[::-1], 1000) is None
    shapes = table("shapes")["classes"]
    turned = load_groups(None, [name.upper() for name in shapes[::-1]], 8)
    assert turned.members == ((0, 1, 3, 7), (2, 4, 5, 6))
    # a classifier of 20 unnamed classes, two for a shape, read through the dataset's classes
    members = [[2 * place, 2 * place + 1] for place in range(8)]
    through = load_groups(None, None, 20, shapes, members)
    assert through.members == ((0, 1, 8, 9, 12, 13, 14, 15), (2, 3, 4, 5, 6, 7, 10, 11))
    voc = [*table("voc")["classes"][:-1], "tv/monitor"]
    assert load_groups(None, voc, 20).group_of(14) == (14,)
    assert load_groups(None, shapes[:7], 7) is None
    assert load_groups(None, None, 8) is None


@needs_wordnet
def test_the_names_of_transformers_are_known():
    lines = (WORDNET / "LOC_synset_mapping.txt").read_text().splitlines()
    assert load_groups(None, [line.partition(" ")[2] for line in lines], 1000).name == "imagenet"


def test_own_groups(tmp_path):
    given = load_groups(TREES_AND_FISH, NAMES, 6)
    assert given.members == ((0, 1, 2), (3, 4))
    as_json, as_csv = tmp_path / "groups.json", tmp_path / "groups.csv"
    as_json.write_text(json.dumps(TREES_AND_FISH))
    as_csv.write_text("class,group\noak,trees\nfir,trees\n2,trees\ncod,fish\neel,fish\n")
    for path in (as_json, as_csv, str(as_csv)):
        read = load_groups(path, NAMES, 6)
        assert (read.members, read.name) == (given.members, Path(path).name)
        assert read.identity == given.identity
    assert load_groups({"a": ["oak", "fir"]}, NAMES, 6).identity != given.identity
    assert load_groups(given, None, 6) is given


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "cannot be read"),
        ("[1, 2]", "must be an object"),
        ('{"a": "oak"}', "must be an object"),
        ('{"a": []}', r"class in a\b"),
        ("{}", "hold no class"),
        ('{"a": ["oka"]}', r"oka.*\boak\b"),
        ('{"a": [6]}', "'6'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, content, line):
    path = tmp_path / "groups.json"
    path.write_text(content)
    with pytest.raises(UserError, match=line) as caught:
        load_groups(path, NAMES, 6)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_no_table(tmp_path):
    with pytest.raises(UserError, match=r"none\.json"):
        load_groups(tmp_path / "none.json", NAMES, 6)
    path = tmp_path / "groups.csv"
    path.write_text("name,kind\noak,trees\n")
    with pytest.raises(UserError, match="class,group"):
        load_groups(path, NAMES, 6)


@given(
    st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=6),
    st.lists(st.floats(-3, 3), min_size=8, max_size=8),
)
def test_group_runner_up_and_rival_by_loops(sets, scores):
    groups = ClassGroups("drawn", tuple(tuple(sorted(members)) for members in sets))
    scores = np.array(scores)
    for label in range(8):
        own = None
        for members in groups.members:
            if label in members and (own is None or len(members) < len(own)):
                own = members
        assert groups.group_of(label) == (own or ())
        best = None
        for member in own or ():
            if member != label and (best is None or scores[member] > scores[best]):
                best = member
        assert groups.runner_up(label, scores) == best
        rival, highest = (), -np.inf
        for members in groups.members:
            mean = sum(scores[member] for member in members) / len(members)
            if own and not set(members) & set(own) and mean > highest + 1e-12:
                rival, highest = members, mean
        found = groups.rival(label, scores)
        assert (found == ()) == (rival == ())
        assert not rival or scores[list(found)].mean() == pytest.approx(highest)


def test_the_runner_up_of_a_contrast_is_of_the_same_group():
    logits = np.array([3.0, 0.5, 1.0, 2.5, 0.0, 2.0])
    groups = load_groups(TREES_AND_FISH, NAMES, 6)

    def sides(rule, logits=logits):
        return rule.terms("x", 0, logits, [[0]])

    grouped, plain = load_rule("contrast:second", NAMES, 6, groups), load_rule("contrast:second", NAMES, 6)
    assert sides(grouped) == TargetTerms((0,), (2,))
    assert sides(plain) == TargetTerms((0,), (3,))
    assert sides(grouped, logits[::-1]) == TargetTerms((5,), (2,))  # the cup is in no group: the runner-up of all
    assert grouped.identity != plain.identity
    assert load_rule("label", NAMES, 6, groups).identity == "label"
    assert sides(load_rule("predicted", NAMES, 6, groups)) == TargetTerms((0,))


def test_a_class_with_a_hypernym_group_is_not_given_one_that_was_joined_for_others():
    table = json.loads((HERE / "groups_imagenet.json").read_text())
    groups = load_groups(None, table["classes"], 1000)
    alone = [set(held) for name, held in table["groups"].items() if name not in table["joined"]]
    for number in range(1000):
        sizes = [len(held) for held in alone if number in held]
        assert (
            len(groups.group_of(number)) == min(sizes)
            if sizes
            else "+" in groups.called[groups.members.index(groups.group_of(number))]
        )
    named = {name: len(groups.group_of(table["classes"].index(name))) for name in ("iPod", "swing", "puck")}
    assert named == {"iPod": 13, "swing": 9, "puck": 13}
