import json

import numpy as np
import pytest
import torch
from refusals import refused

from saliency_bench import targets
from saliency_bench.compute.targets import known_maps
from saliency_bench.compute.targets.class_groups import HERE
from saliency_bench.compute.targets.label_maps import index_of, match
from saliency_bench.compute.targets.rules import TargetTerms, load_rule, stack
from saliency_bench.errors import UserError

MODEL = ["tabby cat", "Siamese_Cat", "beagle", "pug"]
LOGITS = np.array([0.1, 2.0, 3.0, -1.0])


CAT_DOG, CRANES = ["cat", "dog"], ["x", "crane", "y", "crane"]
BOXERS = ["boxer", "Newfoundland, Newfoundland dog", "crane", "crane"]
RACERS = ["maillot", "maillot, tank suit", "racer, race car", "race car, toy", "tub"]


@pytest.mark.parametrize(("labels", "model", "classes", "mapping", "expected"), [
    (["Beagle", "siamese cat"], MODEL, 4, None, [[2], [1]]),  # by name, ignoring order and case
    (["a", "b"], None, 2, None, [[0], [1]]),  # by number if the model has no names
    (["a", "b"], ["LABEL_0", "LABEL_1"], 2, None, [[0], [1]]),
    (CAT_DOG, MODEL, 4, '{"cat": ["tabby cat", "Siamese_Cat"], "dog": 3}', [[0, 1], [3]]),  # a file
    (["a"], ["3", "0", "2", "1"], 4, {"a": 1}, [[3]]),  # a name has priority over a number
    # a class that the model does not have
    (["cat", "fox"], MODEL, 4, {"cat": 0, "fox": []}, [[0], []]),
    (["cat", "fox"], MODEL, 4, {"cat": 0, "fox": None}, [[0], []]),
    # a class of the same name needs no entry, but an entry in the map has priority
    (["boxer", "Newfoundland"], BOXERS, 4, {"Newfoundland": "Newfoundland dog"}, [[0], [1]]),
    (["boxer", "Newfoundland"], BOXERS, 4, {"Newfoundland": 1, "boxer": []}, [[], [1]]),
])  # fmt: skip
def test_labels_are_matched_by_name_number_or_map(labels, model, classes, mapping, expected, tmp_path):
    assert match(labels, model, classes, as_file(mapping, tmp_path)) == expected


def as_file(mapping, tmp_path):
    """Write text to a file and return its path; return any other value unchanged."""
    if not isinstance(mapping, str | bytes) or mapping == "missing.json":
        return mapping
    (tmp_path / "map.json").write_bytes(mapping if isinstance(mapping, bytes) else mapping.encode())
    return tmp_path / "map.json"


@pytest.mark.parametrize(("labels", "model", "classes", "mapping", "words"), [
    (CAT_DOG, MODEL, 4, None, "--label-map"),
    (CAT_DOG, MODEL, 4, {"cat": 0, "dog": "bagle"}, "bagle.*beagle"),
    (CAT_DOG, MODEL, 4, {"cat": 0, "dog": 4}, "'4'"),
    (CAT_DOG, MODEL, 4, "missing.json", r"missing\.json"),
    (CAT_DOG, MODEL, 4, {"cat": ["tabby cat", 0], "dog": 3}, "cat to class 0 more than once"),
    (CAT_DOG, MODEL, 4, '{"cat": 0, "dog": 3, "cat": 1}', "the key 'cat' occurs 2 times in the same JSON object"),
    (CAT_DOG, MODEL, 4, bytes(range(128, 256)), r"\bJSON\b"),
    (["a", "b"], None, 5, None, r"\b5 classes"),
    (["crane"], CRANES, 4, None, r"\bcrane\b"),
    (["cat", "fox"], MODEL, 4, {"cat": 0}, "no entry for fox"),
    (["cat", "fox"], MODEL, 4, {"cat": [], "fox": []}, "names no class for cat"),
    (["boxer", "crane"], BOXERS, 4, {"boxer": "boxer"}, "no entry for crane"),
    (["boxer", "Newfoundland"], BOXERS, 4, {"Newfoundland": 1, "boxr": 2}, "no entry for boxer"),  # probably misspelled
    (["boxer"], BOXERS, 4, {"cat": 1}, "no entry for boxer"),  # the map of another dataset
])  # fmt: skip
def test_unmatched_classes_are_rejected(labels, model, classes, mapping, words, tmp_path):
    refused(words, match, labels, model, classes, as_file(mapping, tmp_path))


def test_index_of_resolves_names_and_numbers():
    assert index_of("1", ["3", "0", "2", "1"], 4) == 3
    assert index_of(1, ["3", "0", "2", "1"], 4) == 3  # numbers as text in JSON, as in CSV
    assert index_of(1, MODEL, 4) == index_of("1", MODEL, 4) == 1
    names = ("maillot", "Tank suit", "racer", "maillot, tank suit")  # one of the names of a class is enough
    assert [index_of(name, RACERS, 5) for name in names] == [0, 1, 2, 1]
    for name, model, words in (("²", None, "²"), ("crane", CRANES, r"crane.*\b1, 3\b"),
                               ("race car", RACERS, "several classes called race car: 2, 3"),
                               ("suit", RACERS, "unknown class of the model 'suit'")):  # fmt: skip
        refused(words, index_of, name, model, 5)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("label", TargetTerms((3,))), ("predicted", TargetTerms((2,))), ("contrast:second", TargetTerms((2,), (1,)))],
)
def test_rules_select_expected_targets(rule, expected):
    assert load_rule(rule, MODEL, 4).terms("x", 1, LOGITS, [[0], [3]]) == expected


def test_label_with_several_classes_becomes_a_group():
    sides = load_rule("label", MODEL, 4).terms("x", 0, LOGITS, [[0, 1]])
    assert stack([sides], 4).tolist() == [[1, 1, 0, 0]]
    assert sides.text(MODEL) == "tabby cat|Siamese_Cat"


def test_target_file_gives_classes_contrasts_and_groups(tmp_path):
    file = tmp_path / "targets.csv"
    file.write_text("image_id,target,against\na,pug,\nb,pug,beagle\nc,0|1,2|3\n")
    rule = load_rule(str(file), MODEL, 4)
    sides = [rule.terms(image_id, 0, LOGITS, [[0]]) for image_id in "abc"]
    assert stack(sides, 4).tolist() == [[0, 0, 0, 1], [0, 0, -1, 1], [1, 1, -1, -1]]
    assert sides[1].text(MODEL) == "pug - beagle"
    refused(r"image d\b", rule.terms, "d", 0, LOGITS, [[0]])
    before = rule.identity
    file.write_text("image_id,target,against\na,pug,\n")
    assert load_rule(str(file), MODEL, 4).identity != before


@pytest.mark.parametrize(("content", "words"), [
    ("id,class\na,1\n", "needs a header"),
    ("image_id,target\na,\n", "image a\\b"),
    ("image_id,target\na,pug\nb,pug\na,beagle\n", "two targets for image a\\b"),
    ("image_id,target,against\na,pug,beagle|pug\n", "class 3 both as target and as against for image a\\b"),
    (bytes(range(128, 256)), r"\bCSV\b"),
    ("lable", r"lable.*label.*predicted.*contrast:second"),
])  # fmt: skip
def test_invalid_target_files_and_rules_are_rejected(tmp_path, content, words):
    file = tmp_path / "targets.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(words, load_rule, "lable" if content == "lable" else str(file), MODEL, 4)


def table(name):
    return json.loads((HERE / f"{name}.json").read_text())


def imagenet():
    return table("groups_imagenet")["classes"]


def voc():
    return list(listed("voc_to_imagenet"))


def listed(name):
    return table(f"labels_{name}")["members"]


def test_voc_classes_map_to_disjoint_imagenet_classes():
    names = imagenet()
    members = match(voc(), names, 1000, known_maps.resolved("voc_to_imagenet", voc(), names, 1000))
    listed = [member for one in members for member in one]
    assert voc() == table("groups_voc")["classes"]
    assert len(set(listed)) == len(listed)
    assert set(listed) < set(range(1000))
    for name, some, others in (
        ("aeroplane", {"airliner", "warplane"}, {"airship"}),
        ("bird", {"cock", "ostrich", "king_penguin", "albatross"}, {"dragonfly", "warplane"}),
        ("boat", {"canoe", "liner", "gondola"}, {"submarine", "aircraft_carrier"}),
        ("car", {"cab", "sports_car", "minivan"}, {"ambulance", "fire_engine", "go-kart", "car_mirror"}),
        ("cat", {"tabby", "Persian_cat"}, {"lynx", "cougar"}),
        ("cow", {"ox"}, {"water_buffalo", "bison"}),
        ("diningtable", {"dining_table"}, {"desk", "pool_table"}),
        ("dog", {"Chihuahua", "pug", "Mexican_hairless"}, {"dingo", "timber_wolf", "African_hunting_dog"}),
        ("horse", {"sorrel"}, {"zebra"}),
        ("motorbike", {"moped", "motor_scooter"}, {"tricycle"}),
        ("person", {"groom", "ballplayer", "scuba_diver"}, {"cowboy_hat"}),
        ("pottedplant", {"pot"}, {"coffeepot", "daisy"}),
        ("sheep", {"ram"}, {"ibex"}),
        ("sofa", {"studio_couch"}, {"park_bench"}),
        ("train", {"bullet_train", "freight_car", "steam_locomotive"}, {"streetcar"}),
        ("tvmonitor", {"television", "monitor", "screen"}, {"laptop"}),
    ):
        found = {names[member] for member in members[voc().index(name)]}
        assert some <= found, name
        assert not others & found, name
    sizes = {name: len(one) for name, one in zip(voc(), members, strict=True)}
    assert (sizes["bird"], sizes["dog"], sizes["cat"]) == (59, 118, 5)


def test_voc_label_map_follows_dataset_and_model_names():
    names = imagenet()
    dataset = [*voc()[:-1], "tv/monitor"]
    plain = known_maps.resolved("voc_to_imagenet", dataset, None, 1000)
    assert plain["tv/monitor"] == [664, 782, 851]
    assert known_maps.resolved("voc_to_imagenet", dataset, [f"{name}, of a kind" for name in names], 1000) == plain
    refused("1000 classes of imagenet", known_maps.resolved, "voc_to_imagenet", dataset, MODEL, 4)
    with pytest.raises(UserError, match=r"aeroplane.*the dataset has fox"):
        known_maps.resolved("voc_to_imagenet", ["cat", "fox"], None, 1000)
    assert known_maps.resolved({"cat": 1}, ["cat"], MODEL, 4) == {"cat": 1}
    assert known_maps.resolved("mine.json", ["cat"], MODEL, 4) == "mine.json"


def members_of(name, dataset):
    """Return {class of a dataset: names of its ImageNet classes in a bundled label map}."""
    members = match(dataset, imagenet(), 1000, known_maps.resolved(name, dataset, imagenet(), 1000))
    return {label: {imagenet()[place] for place in places} for label, places in zip(dataset, members, strict=True)}


def test_pet_breeds_map_to_one_imagenet_class_or_none():
    breeds = table("groups_pets")["classes"]
    members = members_of("pets_to_imagenet", breeds)
    assert list(listed("pets_to_imagenet")) == breeds
    assert members["Siamese"] == {"Siamese_cat"}
    assert members["english_cocker_spaniel"] == {"cocker_spaniel"}
    assert members["american_pit_bull_terrier"] == {"American_Staffordshire_terrier"}
    assert members["staffordshire_bull_terrier"] == {"Staffordshire_bullterrier"}
    without = {breed for breed, classes in members.items() if not classes}
    assert len(without) == 12
    assert {"Abyssinian", "american_bulldog", "havanese", "shiba_inu", "Sphynx"} < without
    assert sum(map(len, members.values())) == 25


def test_coco_classes_map_to_disjoint_imagenet_classes():
    names = list(listed("coco_to_imagenet"))
    members = members_of("coco_to_imagenet", names)
    assert len(names) == 80
    taken = [name for classes in members.values() for name in classes]
    assert len(set(taken)) == len(taken)
    assert members["kite"] == set()  # the crane of ImageNet is a bird
    assert members["mouse"] == {"mouse"}
    assert members["elephant"] == {"Indian_elephant", "African_elephant", "tusker"}
    assert "fire_engine" in members["truck"]
    for shared, other in (("airplane", "aeroplane"), ("tv", "tvmonitor"), ("couch", "sofa"), ("dog", "dog")):
        assert listed("coco_to_imagenet")[shared] == listed("voc_to_imagenet")[other]


def test_fitting_label_map_is_selected():
    pets = list(listed("pets_to_imagenet"))
    assert known_maps.fitting(pets, imagenet(), 1000) == "pets_to_imagenet"
    assert known_maps.fitting(pets, None, 1000) == "pets_to_imagenet"
    assert known_maps.fitting(["bicycle", "tv"], imagenet(), 1000) == "coco_to_imagenet"
    assert known_maps.fitting(["fox"], imagenet(), 1000) == ""
    assert known_maps.fitting(pets, MODEL, 4) == ""
    assert known_maps.fitting(None, imagenet(), 1000) == ""


# Weights of the classes


@pytest.mark.parametrize(("target", "expected"), [
    (targets.one_hot([2, 0], 3), [[0, 0, 1], [1, 0, 0]]),
    (targets.one_hot(1, 3), [[0, 1, 0]]),
    (targets.contrast([0, 1], [1, 1], 3), [[1, -1, 0], [0, 0, 0]]),
    (targets.group([0, 2], 4), [[1, 0, 1, 0]]),
    (targets.class_vs_group(0, [0, 1, 2], 4), [[1, -1, -1, 0]]),
    (targets.class_vs_group(1, [1], 3), [[0, 1, 0]]),  # a class against a group of only itself equals the class
    (targets.group_vs_group([0, 1], [1, 3], 4), [[1, 0, 0, -1]]),
    # "mean" divides each side by its size
    (targets.class_vs_group(0, [0, 1, 2], 4, reduction="mean"), [[1, -0.5, -0.5, 0]]),
    (targets.group_vs_group([0], [1, 2, 3, 4], 5, "mean"), [[1, -0.25, -0.25, -0.25, -0.25]]),
])  # fmt: skip
def test_target_builders_match_hand_values(target, expected):
    assert (target.tolist(), target.dtype) == (expected, torch.float32)


def test_target_scores_match_hand_values():
    logits, shifted = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[11.0, 12.0, 14.0]])
    target, p = targets.contrast([2], [0], 3), logits[0].exp()
    assert targets.score(logits, target).item() == 3
    assert targets.score(logits, target, "probability").item() == pytest.approx(((p[2] - p[0]) / p.sum()).item())
    by_mean, by_sum = targets.class_vs_group(0, [1, 2], 3, "mean"), targets.class_vs_group(0, [1, 2], 3)
    assert targets.score(logits, by_mean) == targets.score(shifted, by_mean)  # "mean" cancels a common shift
    assert targets.score(logits, by_sum) != targets.score(shifted, by_sum)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: targets.one_hot([3], 3), "whole numbers from 0 to 2"),
    (lambda: targets.one_hot([-1], 3), "whole numbers"),
    (lambda: targets.one_hot([0.5], 3), "whole numbers"),
    (lambda: targets.group([], 3), "at least one class"),
    (lambda: targets.group([0], 3, "median"), "neither 'sum' nor 'mean'"),
    (lambda: targets.score(torch.ones(1, 2), torch.ones(1, 2), "odds"), "on='odds' is unknown; use 'logit'"),
    (lambda: targets.score(torch.ones(4, 3), torch.ones(4, 1)), "1 classes, but the classifier has 3"),
    (lambda: targets.expand(torch.ones(2, 3), torch.zeros(5, 3, 4, 4)), "B = 5"),
    (lambda: targets.expand(torch.ones(3), torch.zeros(3, 3, 4, 4)), "shape"),
    (lambda: targets.expand(torch.tensor([[1.0, float("nan")]]), torch.zeros(1, 3, 4, 4)), "finite"),
])  # fmt: skip
def test_invalid_targets_are_rejected(call, words):
    refused(words, call)
