"""Test groups of classes: WordNet groups against a second implementation, named tables, files, and use in runs."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from timm.data import ImageNetInfo

from saliency_bench import registry
from saliency_bench.compute.targets.class_groups import HERE, ClassGroups, load_groups, places_in
from saliency_bench.compute.targets.rules import TargetTerms, load_rule
from saliency_bench.hub_builders import _wordnet as wordnet_groups
from saliency_bench.hub_builders._wordnet import derive, table_of

WORDNET = Path(__file__).parents[3] / "shared" / "data" / "imagenet-hierarchy"
needs_wordnet = pytest.mark.skipif(not WORDNET.is_dir(), reason="WordNet's relation is not here")
NAMES = ["oak", "fir", "elm", "cod", "eel", "cup"]
TREES_AND_FISH = {"trees": ["oak", "fir", 2], "fish": ["cod", "eel"]}


def table(name):
    return json.loads((HERE / f"groups_{name}.json").read_text())


def of_imagenet():
    """Return the classes of ImageNet and the groups of these classes."""
    classes = table("imagenet")["classes"]
    return classes, load_groups(None, classes, 1000)


def test_classes_of_a_table_are_found_in_any_order():
    """Test an order that is not its own inverse."""
    assert places_in(["fox", "Cat", "wild dog"], {"classes": ["cat", "wild_dog", "fox"]}) == [1, 2, 0]
    assert places_in(["fox", "cat", "cat"], {"classes": ["cat", "dog", "fox"]}) == []


@pytest.fixture(scope="module")
def wordnet():
    """Return (edges, {WordNet id: name} in ImageNet, ids of the classes) from files that the script does not read."""
    info = ImageNetInfo("imagenet22k")
    names = {wnid: info.label_name_to_description(wnid, detailed=False).split(", ")[0] for wnid in info.label_names()}
    lines = (WORDNET / "wordnet.is_a.txt").read_text().splitlines()
    index = json.loads((WORDNET / "imagenet_class_index.json").read_text())
    classes = dict(index[str(number)] for number in range(1000))
    return [tuple(line.split()) for line in lines], names | classes, list(classes)


@needs_wordnet
def test_imagenet_table_matches_derived_groups(wordnet):
    """Compare the names with WordNet. Only names of categories that ImageNet lacks may differ."""
    edges, listed, wnids = wordnet
    names = {wnid: listed.get(wnid, wnid).replace(" ", "_") for edge in edges for wnid in edge}
    derived, stored = table_of(names, edges, wnids), table("imagenet")
    for part in ("about", "classes", "wnids"):
        assert derived[part] == stored[part]
    for part in ("groups", "joined", "categories"):
        assert list(derived[part].values()) == list(stored[part].values())
    differing = [one for one, other in zip(derived["groups"], stored["groups"], strict=True) if one != other]
    assert len(stored["groups"]) - len(differing) > 170
    assert all(re.search(r"n\d{8}", name) for name in differing)


@needs_wordnet
def test_imagenet_table_matches_literal_loops(wordnet):
    edges, _, wnids = wordnet
    leaves = {wnid: number for number, wnid in enumerate(wnids)}
    children, parents = {}, {}
    for above, below in edges:
        children.setdefault(above, []).append(below)
        parents.setdefault(below, []).append(above)

    def walk(start, step):
        found, stack = {start: None}, [start]
        while stack:
            for other in step.get(stack.pop(), []):
                if other not in found:
                    found[other] = None
                    stack.append(other)
        return list(found)

    held = cache(lambda synset: {leaves[one] for one in walk(synset, children) if one in leaves})
    hypernyms = cache(lambda synset: walk(synset, parents))

    def brings(leaf, frame):
        best = leaf
        options = [one for one in hypernyms(leaf) if one != frame and frame in hypernyms(one)]
        groups = [one for one in options if 5 <= len(held(one)) <= 50]
        for one in groups or [one for one in options if len(held(one)) < 5]:
            size, best_size = len(held(one)), len(held(best))
            better = best not in groups or size < best_size if groups else size > best_size
            depth, best_depth = len(hypernyms(one)), len(hypernyms(best))
            if better or (size == best_size and (depth, one) < (best_depth, best)):
                best = one
        return best

    def apart(one, other):
        return sum(a not in hypernyms(other) for a in hypernyms(one)) + sum(
            b not in hypernyms(one) for b in hypernyms(other)
        )

    categories, merged = {}, {}
    for leaf in wnids:
        fitting = sorted((len(held(one)), one) for one in hypernyms(leaf) if 5 <= len(held(one)) <= 50)
        if fitting:
            categories[fitting[0][1]] = sorted(held(fitting[0][1]))
            continue
        frame = min((len(held(one)), one) for one in hypernyms(leaf) if len(held(one)) > 50)[1]
        own = brings(leaf, frame)
        names, members = [own], set(held(own))
        others = {brings(wnids[number], frame) for number in held(frame)} - {own}
        while len(members) < 5:
            near = min(others, key=lambda one: (apart(own, one), len(held(one)), abs(int(own[1:]) - int(one[1:])), one))
            others.remove(near)
            if len(members | held(near)) <= 50 and not held(near) <= members:
                names.append(near)
                members |= held(near)
        assert members <= held(frame)
        merged.setdefault(tuple(sorted(names)), (sorted(members), []))[1].append(leaves[leaf])
    stored = table("imagenet")
    by_category = {tuple(stored["categories"][name]): members for name, members in stored["groups"].items()}
    assert by_category == {(name,): members for name, members in categories.items()} | {
        names: members for names, (members, _) in merged.items()
    }
    made_for = {tuple(stored["categories"][name]): classes for name, classes in stored["joined"].items()}
    assert made_for == {names: classes for names, (_, classes) in merged.items()}
    assert sum(map(len, made_for.values())) == 182


# {class: (name of its group, classes that the group must contain, classes that it may also contain)}
ACCEPTABLE = {
    "bald_eagle": ("ostrich + bird of prey", {"kite", "vulture", "great_grey_owl"}, {"ostrich"}),
    "hare": ("leporid + elephant", {"wood_rabbit", "Angora"}, {"Indian_elephant", "African_elephant"}),
    "suspension_bridge": ("patio + bridge + lumbermill", {"steel_arch_bridge", "viaduct"}, {"patio", "lumbermill"}),
    "koala": ("tusker + monotreme + marsupial", {"wallaby", "wombat"}, {"tusker", "echidna", "platypus"}),
    "giant_panda": ("bear + viverrine + procyonid", {"lesser_panda", "ice_bear", "brown_bear"},
                    {"American_black_bear", "sloth_bear", "mongoose", "meerkat"}),
    "macaw": ("parrot + coucal", {"African_grey", "sulphur-crested_cockatoo", "lorikeet"}, {"coucal"}),
    "red_fox": ("hyena + fox", {"kit_fox", "Arctic_fox", "grey_fox"}, {"hyena"}),
    "school_bus": ("stretcher + public transport", {"minibus", "trolleybus", "bullet_train"}, {"stretcher"}),
    "standard_poodle": ("Brabancon griffon + poodle + Mexican hairless", {"toy_poodle", "miniature_poodle"},
                        {"Brabancon_griffon", "Mexican_hairless"}),
    "soup_bowl": ("dish + soap dispenser + wooden spoon", {"mixing_bowl", "wooden_spoon"},
                  {"Petri_dish", "soap_dispenser"}),
    "daisy": ("flower + fungus", {"yellow_lady's_slipper", "agaric"},
              {"coral_fungus", "gyromitra", "stinkhorn", "earthstar", "hen-of-the-woods", "bolete"}),
    "starfish": ("worm + echinoderm", {"sea_urchin", "sea_cucumber"}, {"flatworm", "nematode"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTABLE)
def test_merged_groups_contain_only_acceptable_classes(name):
    classes, groups = of_imagenet()
    called, needed, more = ACCEPTABLE[name]
    index = groups.index_of_group(classes.index(name))
    assert groups.called[index] == called
    members = {classes[member] for member in groups.members[index]}
    assert {name} | needed <= members <= {name} | needed | more
    assert not any(groups.rival(label, np.eye(1000)[list(groups.members[index])].mean(0)) == groups.members[index]
                   for label in range(0, 1000, 50))  # fmt: skip


def test_car_group_matches_paper_and_sizes_are_5_to_50():
    """Compare with figure 3 of P3: the group "Car" contains sports car, racer, Model T and seven more classes."""
    classes, groups = of_imagenet()
    cars = {"ambulance", "beach_wagon", "cab", "convertible", "jeep", "limousine", "minivan", "Model_T", "racer",
            "sports_car"}  # fmt: skip
    assert groups.called[groups.index_of_group(classes.index("sports_car"))] == "car"
    assert {classes[member] for member in groups.group_of(classes.index("sports_car"))} == cars
    assert {len(members) for members in groups.members} <= set(range(5, 51))
    assert all(len(groups.group_of(label)) >= 5 for label in range(1000))
    beagle, persian = 162, 283
    assert all(151 <= member <= 268 for member in groups.group_of(beagle))
    assert groups.group_of(persian) == (281, 282, 283, 284, 285)  # the five cats


def grouped(edges, leaves):
    """Return {category: members} of the derived groups."""
    return {"+".join(group.categories): list(group.members) for group in derive(edges, leaves)}


def test_derive_groups_small_hierarchies():
    """Categories p and o have the same five leaves, and one group is inside another."""
    edges = [("root", "b"), ("b", "a"), ("root", "q")]
    edges += [("a", f"a{i}") for i in range(5)] + [("b", "b0"), ("q", "q0")]
    leaves = [*(f"a{i}" for i in range(5)), "b0", "q0"]
    assert grouped(edges, leaves) == {
        "a": [f"a{i}" for i in range(5)],
        "b": [*(f"a{i}" for i in range(5)), "b0"],
        "root": sorted(leaves),
    }
    tied = [("p", "o"), *(("o", f"a{i}") for i in range(5))]
    assert list(grouped(tied, [f"a{i}" for i in range(5)])) == ["o"]
    # n2 to n6 are alone below a root of 54, so they are merged; the 49 others have a group that is too large to merge
    edges = [("n1", f"n{i}") for i in range(2, 7)] + [("n1", "n90"), *LARGE]
    leaves = [f"n{i}" for i in (2, 3, 4, 5, 6, *range(900, 949))]
    groups = grouped(edges, leaves)
    assert groups == {"n2+n3+n4+n5+n6": ["n2", "n3", "n4", "n5", "n6"], "n90": sorted(leaves[5:])}
    assert grouped([], ["n1", "n2"]) == {"n1+n2": ["n1", "n2"]}  # fewer than five classes


LARGE = [("n90", f"n{i}") for i in range(900, 949)]  # 49 classes below n90, so that n1 has more than 50 classes


def below(name, count):
    """Return edges from n1 to a category and from the category to its classes (n20 to n29 for n2)."""
    return [("n1", name), *((name, f"{name}{i}") for i in range(count))]


@pytest.mark.parametrize(
    ("edges", "label", "expected"),
    [
        # among equally near categories the smallest comes first, although the id of n5 is nearer
        ([*below("n4", 3), *below("n5", 2), *below("n7", 1), *below("n8", 1)], "n40", "n4+n7+n8"),
        ([*below("n4", 3), *below("n5", 2), *below("n7", 1), *below("n8", 1)], "n50", "n4+n5+n7+n8"),
        # among equally small categories the one with the nearest id comes first
        ([*below("n4", 4), *below("n1000", 1), *below("n6", 1)], "n40", "n4+n6"),
        # n5, unlike n4, is also below n0, so it is farther than the larger n7
        ([*below("n4", 3), *below("n5", 2), ("n0", "n5"), *below("n7", 4)], "n40", "n4+n7"),
        # n70 is smaller than n7, which contains it, but one step farther
        ([*below("n4", 4), ("n1", "n7"), ("n7", "n79"), *(("n7", "n70"), *(("n70", f"n70{i}") for i in range(5))),
          *below("n8", 7)], "n40", "n4+n7"),
        # n25 is as near as n6 and smaller, but outside n1
        ([*below("n4", 3), ("n2", "n4"), ("n2", "n25"), *below("n6", 2)], "n40", "n4+n6"),
    ],
)  # fmt: skip
def test_ungrouped_class_is_merged_with_nearest_categories(edges, label, expected):
    edges = [*edges, ("n1", "n90"), *LARGE]
    leaves = {lower for _, lower in edges} - {upper for upper, _ in edges}
    made_for = {leaf: group.categories for group in derive(edges, leaves) for leaf in group.made_for}
    assert "+".join(made_for[label]) == expected


def test_script_converts_wordnet_file_to_table(tmp_path, monkeypatch, capsys):
    nouns = tmp_path / "data.noun"
    refused(rf"{re.escape(str(nouns))}.*WordNet", wordnet_groups.main, str(nouns))
    lines = ["  1 This software and database is being provided to you"]
    lines += ["00000001 03 n 02 motor_car 0 auto 1 001 ~ 00000002 n 0000 | a vehicle | with wheels  "]
    lines += [f"{i:08} 06 n 01 kind_{i} 0 002 @ 00000001 n 0000 + 00000001 v 0101 | one of them  " for i in range(2, 7)]
    nouns.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(wordnet_groups, "TABLE", tmp_path / "table.json")
    refused(r"n01440764 is not a noun.*3\.0", wordnet_groups.main, str(nouns))
    monkeypatch.setattr(ImageNetInfo, "label_names", lambda self: [f"n{i:08}" for i in range(2, 7)])
    wordnet_groups.main(str(nouns))
    written = json.loads((tmp_path / "table.json").read_text())
    assert written["groups"] == {"motor car": [0, 1, 2, 3, 4]}
    assert written["categories"] == {"motor car": ["n00000001"]}
    assert (written["classes"][0], written["wnids"][0], written["joined"]) == ("kind_2", "n00000002", {})
    assert "Princeton" in written["about"]
    nouns.write_text("00000001 03 n zz motor_car\n")
    refused(r"data\.noun", wordnet_groups.main, str(nouns))


def test_group_tables_match_dataset_classes():
    breeds = registry.load("hub_builders", "pet-xai").BREEDS
    pets = table("pets")
    assert pets["classes"] == breeds
    # The source writes cat breeds with a capital letter.
    assert [breeds[place] for place in pets["groups"]["cat"]] == [breed for breed in breeds if breed[0].isupper()]
    assert sorted(pets["groups"]["cat"] + pets["groups"]["dog"]) == list(range(37))
    shapes = table("shapes")
    assert shapes["classes"] == list(registry.load("hub_builders", "shapes-xai").OBJECTS)
    for name in ("shapes", "voc"):
        listed = [place for held in table(name)["groups"].values() for place in held]
        assert sorted(listed) == list(range(len(table(name)["classes"])))


def test_group_table_is_selected_by_class_names():
    from torchvision.models import ResNet18_Weights

    spelled = ResNet18_Weights.DEFAULT.meta["categories"]
    assert load_groups(None, spelled, 1000).name == "imagenet"
    assert load_groups(None, [f"{name}, and so on" for name in table("imagenet")["classes"]], 1000).name == "imagenet"
    assert load_groups(None, spelled[::-1], 1000) is None
    shapes = table("shapes")["classes"]
    turned = load_groups(None, [name.upper() for name in shapes[::-1]], 8)
    assert turned.members == ((0, 1, 3, 7), (2, 4, 5, 6))
    # a classifier with 20 unnamed classes, two per shape, matched to the dataset's classes
    members = [[2 * place, 2 * place + 1] for place in range(8)]
    through = load_groups(None, None, 20, shapes, members)
    assert through.members == ((0, 1, 8, 9, 12, 13, 14, 15), (2, 3, 4, 5, 6, 7, 10, 11))
    voc = [*table("voc")["classes"][:-1], "tv/monitor"]
    assert load_groups(None, voc, 20).group_of(14) == (14,)
    assert load_groups(None, shapes[:7], 7) is None
    assert load_groups(None, None, 8) is None


@needs_wordnet
def test_imagenet_names_of_transformers_are_recognised():
    lines = (WORDNET / "LOC_synset_mapping.txt").read_text().splitlines()
    assert load_groups(None, [line.partition(" ")[2] for line in lines], 1000).name == "imagenet"


def test_groups_load_from_dict_json_or_csv(tmp_path):
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


@pytest.mark.parametrize(("file", "content", "line"), [
    ("groups.json", "{", "cannot be read"),
    ("groups.json", "[1, 2]", "must contain a JSON object"),
    ("groups.json", '{"a": "oak"}', "must contain a JSON object"),
    ("groups.json", '{"a": []}', r"class in a\b"),
    ("groups.json", "{}", "contain no class"),
    ("groups.json", '{"a": ["oka"]}', r"oka.*\boak\b"),
    ("groups.json", '{"a": [6]}', "'6'"),
    ("groups.csv", "name,kind\noak,trees\n", "class,group"),
    ("none.json", None, r"none\.json"),
])  # fmt: skip
def test_invalid_group_files_are_rejected(tmp_path, file, content, line):
    if content is not None:
        (tmp_path / file).write_text(content)
    refused(line, load_groups, tmp_path / file, NAMES, 6)


@given(
    st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=6),
    st.lists(st.floats(-3, 3), min_size=8, max_size=8),
    st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 7), min_size=1)),
)
def test_group_runner_up_and_rival_match_loops(sets, scores, drawn):
    joined = {index: tuple(sorted(drawn[index] & sets[index])) for index in drawn if index < len(sets)}
    groups = ClassGroups("drawn", tuple(tuple(sorted(members)) for members in sets), (), dict(joined))
    scores = np.array(scores)
    for label in range(8):
        own = None
        for index, members in enumerate(groups.members):
            made_for = joined.get(index, members)
            if label in made_for and (own is None or len(members) < len(own)):
                own = members
        assert groups.group_of(label) == (own or ())
        best = None
        for member in own or ():
            if member != label and (best is None or scores[member] > scores[best]):
                best = member
        assert groups.runner_up(label, scores) == best
        rival, highest = (), -np.inf
        for index, members in enumerate(groups.members):
            if index in joined:
                continue
            mean = sum(scores[member] for member in members) / len(members)
            if own and not set(members) & set(own) and mean > highest + 1e-12:
                rival, highest = members, mean
        found = groups.rival(label, scores)
        assert (found == ()) == (rival == ())
        assert not rival or scores[list(found)].mean() == pytest.approx(highest)
    # a group without classes of the model is not a rival
    assert ClassGroups("mapped", ((0, 1), (), (2,))).rival(0, np.array([0.5, 0.3, 0.2])) == (2,)


def test_contrast_runner_up_is_in_the_same_group():
    logits = np.array([3.0, 0.5, 1.0, 2.5, 0.0, 2.0])
    groups = load_groups(TREES_AND_FISH, NAMES, 6)

    def sides(rule, logits=logits):
        return rule.terms("x", 0, logits, [[0]])

    grouped, plain = load_rule("contrast:second", NAMES, 6, groups), load_rule("contrast:second", NAMES, 6)
    assert sides(grouped) == TargetTerms((0,), (2,))
    assert sides(plain) == TargetTerms((0,), (3,))
    assert sides(grouped, logits[::-1]) == TargetTerms((5,), (2,))  # the cup has no group: runner-up of all classes
    assert grouped.identity != plain.identity
    assert load_rule("label", NAMES, 6, groups).identity == "label"
    assert sides(load_rule("predicted", NAMES, 6, groups)) == TargetTerms((0,))
