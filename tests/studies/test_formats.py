"""Tests of masks for annotation programs: exact round trips, files of other programs, and damaged files."""

import json
from base64 import b64encode
from contextlib import suppress
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import dataset, import_masks, study_of
from PIL import Image as Pictures
from pycocotools import mask as reference
from refusals import refused

from saliency_bench.errors import UserError
from saliency_bench.studies.annotation_report import annotation_report
from saliency_bench.studies.exporting import export, module_of, read_masks
from saliency_bench.studies.formats import label_studio
from saliency_bench.studies.formats.regions import FORMATS, PersonMask
from saliency_bench.utils.pictures import values

SIZE = (60, 80)


PEOPLE = ("p-a", "p-b", "p-c")


def drawn(seed, marked=0.3):
    return np.random.default_rng(seed).random(SIZE) < marked


def mask_by(number, image):
    """Return the mask that a person of `PEOPLE` draws on an image; the masks of an image are similar."""
    return drawn(image) ^ drawn(10 * image + number, 0.05)


@pytest.fixture(scope="module")
def annotated(tmp_path_factory):
    """Return a study of six images and three people, with masks, answers of "no region", and a skipped image.

    Tests only read this study.
    """
    annotating = study_of(tmp_path_factory.mktemp("annotated"), dataset(6))
    for number, person in enumerate(PEOPLE):
        for image in range(6):
            unit, request = f"image-{image:03d}", f"{person} {image}"
            if image == 3 or (image == 2 and number == 1):
                annotating.study.record(person, unit, request, {"kind": "no_region"})
            elif image == 4 and number == 2:
                annotating.study.record(person, unit, request, {"kind": "skip", "reason": "blurred"})
            else:
                annotating.study.record(person, unit, request, {"kind": "mask"}, mask=mask_by(number, image))
    return annotating


@pytest.fixture(scope="module")
def exported(annotated, tmp_path_factory):
    """Return {format: folder} with the masks of the study above."""
    folders = {format: tmp_path_factory.mktemp("exported") / format for format in FORMATS}
    for format, folder in folders.items():
        assert export(annotated, folder, format) == 6
    return folders


@pytest.fixture
def few(tmp_path):
    return study_of(tmp_path / "few", dataset(2))


PLACES = {
    "png": ("masks/p-a", "consensus"),
    "coco": ("annotations.json", None),
    "label-studio": ("tasks.json", None),
    "cvat": ("p-a/annotations.xml", "consensus/annotations.xml"),
}


def answers(annotating):
    """Return {(person, unit): mask, or None for no region} of the answers that were not skipped."""
    found = [one for one in annotating.study.answers() if one.payload["kind"] != "skip"]
    return {(one.person, one.unit): None if one.pixels is None else one.pixels.tobytes() for one in found}


@pytest.mark.parametrize("format", FORMATS)
def test_round_trip_restores_every_answer(annotated, exported, tmp_path, format):
    assert exported[format].stat().st_mode & 0o777 == 0o700, "the folder contains pseudonyms"
    other = study_of(tmp_path, dataset(6))
    for person in PEOPLE:
        import_masks(other, exported[format], format, person)
    assert answers(other) == answers(annotated)
    assert [unit for (_, unit), mask in answers(other).items() if mask is None].count("image-003") == 3
    read, drawn = (annotation_report(one)["agreement"] for one in (other, annotated))
    assert {name: one["n"] for name, one in read.items()} == dict.fromkeys(drawn, 6)
    values = {name: one["value"] for name, one in drawn.items()}
    assert {name: one["value"] for name, one in read.items()} == pytest.approx(values, rel=1e-12)


@pytest.mark.parametrize("format", FORMATS)
def test_import_rejects_a_person_without_masks(annotated, exported, format):
    words = r"has no masks of p; set --person to one of: p-a, p-b, p-c$"
    refused(words, read_masks, annotated.images, exported[format], format, "p")


@pytest.mark.parametrize("format", ["coco", "label-studio"])
def test_import_accepts_file_or_folder(annotated, exported, tmp_path, format):
    found = read_masks(annotated.images, exported[format] / PLACES[format][0], format, "p-c")
    assert (len(found.masks), found.strange) == (5, [])
    words = f"is a folder without {PLACES[format][0]}; specify the file"
    refused(words, read_masks, annotated.images, tmp_path, format, "p-a")


@pytest.mark.parametrize("person", ["consensus", "Consensus", "../../x", "/tmp/x", "a/b", "a\\b", ".hidden", "..", "",
                                    " ", "a b", "x" * 101, "a\nb"])  # fmt: skip
def test_import_rejects_invalid_pseudonyms(annotated, exported, person):
    words = "^--person (must consist of 1 to 100 letters|.* is reserved)"
    refused(words, read_masks, annotated.images, exported["coco"], "coco", person)


@pytest.mark.parametrize("format", ["png", "cvat"])
def test_export_rejects_person_names_that_are_paths(few, tmp_path, format):
    names = ["../../outside", "/tmp/outside", "..", ".", ".git", "a/b", "a\\b", "ü" * 101]
    words = r"the person's name .* cannot be used as a folder name; export as coco or label-studio"
    for name in names:
        refused(words, module_of(format).check, [PersonMask("image-000", "cat", name, drawn(1))])
    few.study.record(names[0], "image-000", "a request", {"kind": "mask"}, mask=drawn(1))
    before = sorted(tmp_path.rglob("*"))
    refused(words, export, few, tmp_path / "out", format)
    assert sorted(tmp_path.rglob("*")) == before
    assert export(few, tmp_path / "out", format, people=False) == 1


def test_export_rejects_a_person_called_consensus(few, tmp_path):
    few.study.record("Consensus", "image-000", "a request", {"kind": "mask"}, mask=drawn(1))
    for format in FORMATS:
        refused("has a person called consensus", export, few, tmp_path / "out", format)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("units", "names"), [
    (["../../a", "b/c"], [".._.._a.png", "b_c.png"]), (["a/b_c", "a_b/c"], None),
])  # fmt: skip
def test_png_export_replaces_slashes_and_rejects_collisions(tmp_path, units, names):
    annotating = study_of(tmp_path, dataset(2).remove_columns("image_id").add_column("image_id", units))
    for unit in units:
        annotating.study.record("p-a", unit, unit, {"kind": "mask"}, mask=drawn(1))
    if names:
        export(annotating, tmp_path / "out", "png")
        assert sorted(path.name for path in (tmp_path / "out/masks/p-a").iterdir()) == names
    else:
        refused("export as cvat, coco or label-studio", export, annotating, tmp_path / "out", "png")
        assert export(annotating, tmp_path / "out", "cvat") == 2


def test_images_without_annotations_stay_unanswered(tmp_path):
    """Leave images without annotations unanswered, because nobody may have seen them yet."""
    size = {"height": 60, "width": 80}
    content = {"images": [{"id": 1, "file_name": "a.jpg"} | size], "annotations": []}
    (tmp_path / "coco").write_text(json.dumps(content))
    (tmp_path / "label-studio").write_text(json.dumps([{"data": {"image": "a.jpg"}, "annotations": [{"result": []}]}]))
    (tmp_path / "cvat").write_text('<annotations><image id="0" name="a.jpg" height="60" width="80"/></annotations>')
    for format in ("coco", "label-studio", "cvat"):
        assert module_of(format).read(tmp_path / format, "ada") == {}


def test_png_export_keeps_the_votes(exported):
    found = values(exported["png"] / "votes/image-000.png")
    np.testing.assert_array_equal(found, sum(mask_by(number, 0).astype(int) for number in range(3)))
    assert not values(exported["png"] / "consensus/image-003.png").any()


@pytest.mark.parametrize("format", FORMATS)
def test_export_without_people_contains_no_pseudonyms(annotated, tmp_path, format):
    export(annotated, tmp_path / "out", format, people=False)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert "p-a" not in str(path.relative_to(tmp_path / "out"))
        assert b"p-a" not in path.read_bytes()
    refused("exists", export, annotated, tmp_path / "out", format)


@pytest.mark.parametrize("format", FORMATS)
def test_imported_masks_are_stored_once(exported, few, format):
    one, consensus = PLACES[format]
    if consensus is not None:
        agreed = module_of(format).read(exported[format] / consensus, "p-a")
        np.testing.assert_array_equal(agreed["image-004"], mask_by(0, 4) | mask_by(1, 4), "one of two people is half")
    for _ in range(2):
        count, strange = import_masks(few, exported[format] / one, format, "p-a")
    assert (count, sorted(strange)) == (2, [f"image-00{number}" for number in range(2, 6)])
    stored = few.study.answers(last=False)
    assert [one.unit for one in stored] == ["image-000", "image-001"]
    np.testing.assert_array_equal(stored[1].pixels, mask_by(0, 1))


def test_coco_export_matches_pycocotools(exported):
    content = json.loads((exported["coco"] / "annotations.json").read_text())
    one = content["annotations"][0]
    rle = reference.frPyObjects(one["segmentation"], *SIZE)
    np.testing.assert_array_equal(reference.decode(rle), mask_by(0, 0))
    assert (one["area"], one["bbox"]) == (reference.area(rle), reference.toBbox(rle).tolist())
    people = [one["person"] for one in content["annotations"]]
    assert people[:4] == [*PEOPLE, "consensus"]
    assert people[8:] == ["p-a", "p-c", "consensus", "p-a", "p-b", "consensus", *PEOPLE, "consensus"]


def coco_regions(*segmentations):
    """Return COCO's JSON with one region on each of the images 0.jpg, 1.jpg ..."""
    size = {"height": 60, "width": 80}
    images = [{"id": number, "file_name": f"{number}.jpg"} | size for number in range(len(segmentations))]
    regions = [{"image_id": number, "segmentation": one} for number, one in enumerate(segmentations)]
    return json.dumps({"images": images, "annotations": regions})


def test_coco_import_reads_compressed_rle_and_polygons(tmp_path):
    mask = drawn(4)
    packed = reference.encode(np.asfortranarray(mask.astype(np.uint8)))
    packed["counts"] = packed["counts"].decode()
    (tmp_path / "a.json").write_text(coco_regions(packed, [[10, 10, 30, 10, 30, 20, 10, 20]]))
    read = module_of("coco").read(tmp_path / "a.json", "ada")
    np.testing.assert_array_equal(read["0.jpg"], mask)
    np.testing.assert_array_equal(read["1.jpg"], rectangle(slice(10, 20), slice(10, 30)))


@pytest.mark.parametrize("counts", ["PP`0`0", "0", "", "o" * 10**5, "\x00\x01\u20ac", None])
def test_coco_import_rejects_damaged_rle(counts, tmp_path):
    (tmp_path / "a.json").write_text(coco_regions({"size": [60, 80], "counts": counts}))
    refused("0.jpg: (damaged|the) run lengths", module_of("coco").read, tmp_path / "a.json", "ada")


@given(st.integers(1, 7), st.integers(1, 300), st.integers(0, 9), st.randoms())
def test_brush_mask_round_trip_is_exact(height, width, level, random):
    flat = [random.randint(0, 9) < level for _ in range(height * width)]
    mask = np.array(flat).reshape(height, width)
    np.testing.assert_array_equal(label_studio.decode(label_studio.encode(mask).tolist(), height, width), mask)


def test_brush_mask_matches_bits_by_hand():
    """Test 2 pixels, the second of which is marked.

    The 8 bytes are stored as two runs of 4 (3 bits store 4 - 1), or as single values.
    """
    runs = "1" + "00" + "011" + "00000000" + "1" + "00" + "011" + "11111111"
    single = "0" + "00" + "111" + "".join(f"{byte:08b}" for byte in (9, 9, 9, 0, 1, 2, 3, 255))
    for content in (single, runs):
        bits = f"{8:032b}" + "00111" + "0010" + "0011" + "0111" + "1111" + content
        bits += "0" * (-len(bits) % 8)
        stream = [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]
        assert label_studio.decode(stream, 1, 2).tolist() == [[False, True]]
    assert label_studio.encode(np.array([[False, True]])).tolist() == stream


CUT = [label_studio.encode(drawn(1)).tolist()[:length] for length in (9, 12, 40)]


@pytest.mark.parametrize("stream", [[], [1, 2, 3], [256] * 9, [0] * 40, ["a"] * 9, [[1]] * 9, None, *CUT])
def test_damaged_brush_mask_is_rejected(stream):
    with pytest.raises((UserError, TypeError), match=r"damaged|iterable"):
        label_studio.decode(stream, *SIZE)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"images": 3}', "<x>", "[[[[", '[{"data": 1}]', "<!DOCTYPE a []><a/>"]
)
def test_foreign_files_are_rejected_or_empty(tmp_path, format, text):
    path = tmp_path / "file"
    path.write_text(text)
    found = {}
    with suppress(UserError):
        found = module_of(format).read(path, "ada")
    assert found == {}


@pytest.mark.slow
def test_label_studio_export_matches_official_converter(exported):
    brush = pytest.importorskip("label_studio_converter.brush", reason="needs label-studio-converter")
    seen = {}
    for task in json.loads((exported["label-studio"] / "tasks.json").read_text()):
        for number, annotation in enumerate(task["annotations"]):
            for one in annotation["result"]:
                flat = brush.decode_rle(one["value"]["rle"])
                pixels = flat.reshape(one["original_height"], one["original_width"], 4)
                seen[task["data"]["image"], number] = pixels[:, :, 3] > 0
                assert brush.encode_rle(flat.tolist()) == one["value"]["rle"]
    for image, number in ((0, 0), (0, 1), (1, 0)):
        np.testing.assert_array_equal(seen[f"image-{image:03d}", number], mask_by(number, image))


def test_cvat_export_matches_official_sdk(exported):
    """Convert an element to the points of a shape, as CVAT's import does: the runs, then the corners of the box."""
    masks = pytest.importorskip("cvat_sdk.masks", reason="needs cvat-sdk")
    for number, unit in ((0, 0), (1, 0), (0, 1)):
        images = ElementTree.parse(exported["cvat"] / PEOPLE[number] / "annotations.xml").getroot().iter("image")
        (image,) = [one for one in images if one.get("name") == f"image-{unit:03d}"]
        (element,) = image.iter("mask")
        left, top, width, height = (int(element.get(name)) for name in ("left", "top", "width", "height"))
        points = [*map(int, element.get("rle").split(",")), left, top, left + width - 1, top + height - 1]
        size = {"image_width": int(image.get("width")), "image_height": int(image.get("height"))}
        np.testing.assert_array_equal(masks.decode_mask(points, **size), mask_by(number, unit))
        assert masks.encode_mask(mask_by(number, unit)) == points


# Files of other programs


class Images:
    """Images of SIZE as a study stores them: {id: class}."""

    def __init__(self, classes, size=SIZE):
        self.classes, self.units, self.size = classes, list(classes), lambda unit: size
        self.image_id, self.label = lambda unit: unit.partition(", ")[0], lambda unit: classes[unit]


CATS = Images({"p1": "cat", "p2": "cat", "p3": "cat"})
# rows 8:24, columns 6:36
CAT = {"x": 10, "y": 10, "width": 20, "height": 50, "rotation": 0, "rectanglelabels": ["cat"]}


def rectangle(rows, columns):
    mask = np.zeros(SIZE, bool)
    mask[rows, columns] = True
    return mask


BOX = rectangle(slice(6, 36), slice(8, 24))


def result(value, kind="rectanglelabels", **more):
    size = {"original_height": SIZE[0], "original_width": SIZE[1], "image_rotation": 0}
    return {"type": kind, "value": value} | size | more


def task(name, *annotations, **more):
    return {"data": {"image": name}, "annotations": list(annotations), **more}


def by(*results, **more):
    return {"completed_by": 1, "was_cancelled": False, "result": list(results), **more}


def imported(tmp_path, content, format="label-studio", images=CATS, label="", person="ada"):
    path = tmp_path / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_masks(images, path, format, person, label)


def check_read(found, mask, read, drawn, skipped, unit="p1"):
    np.testing.assert_array_equal(found.masks[unit], mask)
    assert found.selection.counts() == {"read": read, "drawn": drawn, "skipped": skipped}


def bitmask(mask):
    pixels = np.zeros((*mask.shape, 4), np.uint8)
    pixels[mask, 3] = 255  # black on transparent
    buffer = BytesIO()
    Pictures.fromarray(pixels).save(buffer, "png")
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"


ROWS, COLUMNS = np.mgrid[:60, :80] + 0.5
SHAPES = {
    "rectangle": (CAT, BOX),
    # rotated by 90 degrees around its upper left corner (8, 6): 16 x 30 pixels become 30 x 16 to the left
    "turned rectangle": (CAT | {"x": 50, "rotation": 90}, rectangle(slice(6, 22), slice(10, 40))),
    "polygon": (
        {"points": [[10, 10], [30, 10], [30, 60], [10, 60]], "closed": True, "polygonlabels": ["cat"]}, BOX
    ),
    "ellipse": (
        {"x": 50, "y": 50, "radiusX": 25, "radiusY": 10, "rotation": 0, "ellipselabels": ["cat"]},
        ((COLUMNS - 40) / 20) ** 2 + ((ROWS - 30) / 6) ** 2 <= 1,
    ),
    "turned ellipse": (
        {"x": 50, "y": 50, "radiusX": 25, "radiusY": 10, "rotation": 90, "ellipselabels": ["cat"]},
        ((ROWS - 30) / 20) ** 2 + ((COLUMNS - 40) / 6) ** 2 <= 1,
    ),
    "brush": ({"format": "rle", "rle": label_studio.encode(BOX).tolist(), "brushlabels": ["cat"]}, BOX),
    "bitmask": ({"imageDataURL": bitmask(BOX), "bitmasklabels": ["cat"]}, BOX),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHAPES)
def test_label_studio_import_draws_every_region_type(tmp_path, kind):
    value, mask = SHAPES[kind]
    check_read(imported(tmp_path, [task("p1", by(result(value)))]), mask, 1, 1, {})


@pytest.mark.parametrize(("value", "why"), [
    ({"vertices": [], "vectorlabels": ["cat"]}, "type vector cannot be drawn"),
    ({"points": [[1, 2], [3, 4]], "polygonlabels": ["cat"]}, "a polygon is damaged"),
    ({"points": [[1, 2, 3]] * 3, "polygonlabels": ["cat"]}, "a polygon is damaged"),
    (CAT | {"x": None}, "a rectangle is damaged"),
    ({"rle": [1, 2, 3], "brushlabels": ["cat"]}, "a brush mask is damaged"),
    ({"imageDataURL": bitmask(BOX[:9]), "bitmasklabels": ["cat"]}, "does not have the same size as the image"),
    ({"imageDataURL": "data:image/png;base64,aaaa", "bitmasklabels": ["cat"]}, "a bitmask is damaged"),
    (None, "rotated by 90 degrees"), ({}, "no usable height"),
])  # fmt: skip
def test_image_with_undrawable_region_is_left_out_and_reported(tmp_path, value, why):
    odd = result(value if value is not None else CAT, image_rotation=90 * (value is None))
    if value == {}:
        odd = result(CAT, original_height=None)
    tasks = [task("p1", by(odd, result(CAT))), task("p2", by(result(CAT)))]
    found = imported(tmp_path, tasks)
    assert list(found.masks) == ["p2"]
    assert why in found.selection.left_out["p1"]
    counts = found.selection.counts()
    assert (counts["read"], counts["drawn"], counts["skipped"]) == (3, 1, {"of an image that was left out": 2})
    refused("no mask that can be stored .image p1: ", imported, tmp_path, tasks[:1])


def test_regions_without_area_are_counted_but_not_drawn(tmp_path):
    point = result({"x": 3, "y": 3, "width": 1, "keypointlabels": ["cat"]}, "keypointlabels")
    choice = result({"choices": ["clear"]}, "choices")
    words = result({"start": 0, "end": 3, "labels": ["cat"]}, "labels")
    video = result({"sequence": [], "labels": ["cat"]}, "videorectangle")
    found = imported(tmp_path, [task("p1", by(point, choice)), task("p2", by(point, words, video, result(CAT)))])
    assert list(found.masks) == ["p2"]
    skipped = {"keypoint": 2, "labels": 1, "video": 1}
    check_read(found, BOX, 5, 1, {f"of type {kind}, which has no area": n for kind, n in skipped.items()}, "p2")
    assert found.selection.line().endswith("; ignored: 1 choices")


def test_results_sharing_an_id_form_one_region(tmp_path):
    """Test the output of the tags Rectangle and Labels, with attributes of the region."""
    shape = {name: value for name, value in CAT.items() if name != "rectanglelabels"}
    results = [result(shape, "rectangle", id="a"), result(shape | {"labels": ["cat"]}, "labels", id="a"),
               result(shape | {"choices": ["sharp"]}, "choices", id="a"),
               result(shape | {"labels": ["shadow"], "x": 50}, "labels", id="b")]  # fmt: skip
    check_read(imported(tmp_path, [task("p1", by(*results))]), BOX, 2, 1, {"labelled shadow": 1})


def test_cancelled_annotations_and_predictions_are_skipped(tmp_path):
    cancelled = by(result(CAT), was_cancelled=True, no_region=[60, 80])
    tasks = [task("p1", by(was_cancelled=True), predictions=[by(result(CAT))]),
             task("p2", cancelled, by(result(CAT))), task("p3", by(), predictions=[7, 8])]  # fmt: skip
    found = imported(tmp_path, tasks)
    assert list(found.masks) == ["p2"]
    check_read(found, BOX, 2, 1, {"of a cancelled annotation": 1}, "p2")
    assert found.selection.passed == {"prediction": 3, "cancelled annotation": 2}


@pytest.mark.parametrize(("first", "second", "counts"), [
    ({"created_at": "2026-01-02"}, {"created_at": "2026-01-03"}, 1),
    ({"created_at": "2026-01-03"}, {"created_at": "2026-01-02"}, 0),
    ({"created_at": "2026-01-03"}, {"created_at": "2026-01-02", "updated_at": "2026-01-04"}, 1),
    ({"ground_truth": True}, {"updated_at": "2026-01-04"}, 0),
    ({"reviews": [{"accepted": True}]}, {"updated_at": "2026-01-04", "reviews": [{"accepted": False}]}, 0),
    ({}, {}, 1),
])  # fmt: skip
@pytest.mark.parametrize("tasks", [1, 2])
def test_accepted_or_newest_annotation_of_a_person_counts(tmp_path, first, second, counts, tasks):
    one, two = by(result(CAT), **first), by(result(CAT | {"x": 50}), result(CAT | {"x": 70}), **second)
    content = [task("p1", one, two)] if tasks == 1 else [task("p1.png", one), task("p1.png", two)]
    found = imported(tmp_path, content)
    moved = rectangle(slice(6, 36), slice(40, 72))  # 16 pixels wide, from 40 and from 56
    skipped = {"of an annotation that is older or was not accepted": 2 - counts}
    check_read(found, moved if counts else BOX, 3, 1 + counts, skipped)


def labelled(*labels):
    return [result(CAT | {"x": 10 * place, "width": 10, "rectanglelabels": [label] if label else []})
            for place, label in enumerate(labels)]  # fmt: skip


def columns(*places):
    mask = np.zeros(SIZE, bool)
    for place in places:
        mask[6:36, 8 * place : 8 * place + 8] = True
    return mask


@pytest.mark.parametrize(("known", "labels", "label", "places"), [
    ("cat", ["cat", "background", "cat"], "", (0, 2)), ("cat", ["Cat ", "shadow"], "", (0,)),
    ("cat", ["cat", None], "", (0,)), ("cat", [None, None], "", (0, 1)),
    ("cat", ["cat", "tail", "tail"], "tail", (1, 2)), ("cat", ["object", "shadow"], "Object", (0,)),
    ("", ["a"], "", (0,)), ("", ["a", "b"], "b", (1,)),  # a dataset without classes
])  # fmt: skip
@pytest.mark.parametrize("format", ["label-studio", "cvat", "coco"])
def test_label_option_selects_regions(tmp_path, known, labels, label, places, format):
    content = {
        "label-studio": [task("p1.png", by(*labelled(*labels)))],
        "cvat": cvat(*(boxed(place, label) for place, label in enumerate(labels))),
        "coco": coco_of(labels),
    }[format]
    found = imported(tmp_path, content, format, Images({"p1": known}), label)
    np.testing.assert_array_equal(found.masks["p1"], columns(*places))
    counts = found.selection.counts()
    assert (counts["read"], counts["drawn"]) == (len(labels), len(places))
    assert sum(counts["skipped"].values()) == len(labels) - len(places)


def boxed(place, label):
    named = f'label="{label}"' if label else ""
    return f'<box {named} xtl="{8 * place}" ytl="6" xbr="{8 * place + 8}" ybr="36" source="manual"/>'


def cvat(*elements, name="p1.png", size='height="60" width="80"'):
    return f'<annotations><image id="0" name="{name}" {size}>{"".join(elements)}</image></annotations>'


def coco_of(labels):
    kinds = [{"id": str(place), "name": label} for place, label in enumerate(labels) if label]
    corners = [[8 * place, 6, 8 * place + 8, 6, 8 * place + 8, 36, 8 * place, 36] for place in range(len(labels))]
    listed = [{"image_id": 7.0, "category_id": str(place), "segmentation": one} for place, one in enumerate(corners)]
    image = {"id": 7.0, "file_name": "images\\p1.png", "height": 60, "width": 80}
    return {"images": [image], "categories": kinds, "annotations": listed}


@pytest.mark.parametrize(("images", "labels", "label", "message"), [
    (CATS, ["object", "object"], "", r"class of its image \(cat\); its labels are object; set --label to"),
    (CATS, ["cat"], "dog", "no region labelled dog; its labels are cat"),
    (CATS, [None], "cat", "no region labelled cat; its regions have no labels; remove --label"),
    (Images({"p1": ""}), ["a", "b"], "", r"no classes, but .* several labels \(a, b\); set --label"),
])  # fmt: skip
def test_ambiguous_or_missing_labels_are_rejected(tmp_path, images, labels, label, message):
    refused(message, imported, tmp_path, [task("p1", by(*labelled(*labels)))], images=images, label=label)


@pytest.mark.parametrize("joint", [", ", ":"])  # for rows that share an id, and for datasets of `build coco-json`
def test_image_with_several_classes_gets_a_mask_per_class(tmp_path, joint):
    cat, dog = f"p1{joint}cat", f"p1{joint}dog"
    images = Images({cat: "cat", dog: "dog"})
    found = imported(tmp_path, [task("x/p1.png", by(*labelled("dog", "cat", "sky", None, "dog")))], images=images)
    np.testing.assert_array_equal(found.masks[cat], columns(1))
    np.testing.assert_array_equal(found.masks[dog], columns(0, 4))
    assert found.selection.skipped == {"labelled sky": 1, "without a label": 1}
    found = imported(tmp_path, [task(dog, by(*labelled("dog", "cat")))], images=images)
    assert list(found.masks) == [dog]


def test_uploaded_file_names_match_their_image(tmp_path):
    names = ["/data/upload/1/ab12cd34-p1.png", "/data/local-files/?d=in%5Cp2.png", "s3://bucket/p3.jpg?x=p1", "p4.png"]
    found = imported(tmp_path, [task(name, by(result(CAT))) for name in names])
    assert (list(found.masks), found.strange) == (["p1", "p2", "p3"], ["p4.png"])
    assert found.selection.skipped == {"for an image that is not in the dataset": 1}
    found = imported(tmp_path, [task(name, by(result(CAT))) for name in ("a/p1.png", "b/p1.png", "p2.png")])
    assert (list(found.masks), found.strange) == (["p2"], ["a/p1.png", "b/p1.png"])


@pytest.mark.parametrize("content", [
    [{"data": {"photo": "p1.png", "text": "p2"}, "annotations": [by(result(CAT))]}],
    [{"data": {"id": 3}, "file_upload": "ab12cd34-p1.png", "completions": [by(result(CAT))]}],
    by(result(CAT), task={"id": 1, "data": {"image": "s3://b/p1.png"}}),
    [task(["p2.png", "p1.png"], by(result(CAT, item_index=1)))],
])  # fmt: skip
def test_label_studio_import_reads_alternative_layouts(tmp_path, content):
    found = imported(tmp_path, content)
    assert list(found.masks) == ["p1"]
    np.testing.assert_array_equal(found.masks["p1"], BOX)


def test_label_studio_import_reads_json_min(tmp_path):
    converter = pytest.importorskip("label_studio_converter", reason="needs label-studio-converter")
    brush = {"format": "rle", "rle": label_studio.encode(columns(4)).tolist(), "brushlabels": ["cat"]}
    results = [result(CAT, from_name="r", to_name="image"),
               result(brush, "brushlabels", from_name="b", to_name="image"),
               result({"choices": ["clear"]}, "choices", from_name="c", to_name="image")]  # fmt: skip
    annotations = [by(*results, created_at="2026-01-01"), by(*results[:1], was_cancelled=True, created_at="2026-01-02")]
    (tmp_path / "tasks.json").write_text(json.dumps([task("s3://b/p1.png", *annotations, id=3)]))
    labels = '<Label value="cat"/>'
    tags = f'<RectangleLabels name="r" toName="image">{labels}</RectangleLabels>'
    tags += f'<BrushLabels name="b" toName="image">{labels}</BrushLabels>'
    tags += '<Choices name="c" toName="image"><Choice value="clear"/></Choices>'
    project = converter.Converter(f'<View><Image name="image" value="$image"/>{tags}</View>', str(tmp_path))
    project.convert_to_json_min(str(tmp_path / "tasks.json"), str(tmp_path / "out"), is_dir=False)
    found = read_masks(CATS, tmp_path / "out/result.json", "label-studio", "ada")
    check_read(found, BOX | columns(4), 2, 2, {})


def test_cvat_import_draws_or_counts_every_region_type(tmp_path):
    elements = {
        '<mask label="cat" left="5" top="7" width="4" height="2" rle="0, 3, 2, 3"/>': 6,
        '<polygon label="cat" points="20.0,10.0;30.0,10.0;30.0,20.0;20.0,20.0" z_order="1"/>': 100,
        '<box label="cat" xtl="40" ytl="10" xbr="50" ybr="14" rotation="90.0"/>': 40,
        '<ellipse label="cat" cx="70" cy="40" rx="6" ry="3" rotation="90"/>': int(
            (((ROWS - 40) / 6) ** 2 + ((COLUMNS - 70) / 3) ** 2 <= 1).sum()
        ),
    }
    mask = rectangle(slice(10, 20), slice(20, 30)) | rectangle(slice(7, 17), slice(43, 47))
    mask |= ((ROWS - 40) / 6) ** 2 + ((COLUMNS - 70) / 3) ** 2 <= 1
    mask[7, 5:8] = mask[8, 6:9] = True
    others = ['<points label="cat" points="1,2;3,4"/>', '<polyline label="cat" points="1,2;3,4"/>',
              '<tag label="cat"/>', '<skeleton label="cat"><points label="a" points="1,2"/></skeleton>',
              boxed(9, "shadow")]  # fmt: skip
    found = imported(tmp_path, cvat(*elements, *others, name="images/p1.png"), "cvat")
    skipped = {f"of type {kind}, which has no area": 1 for kind in ("points", "polyline", "skeleton")}
    check_read(found, mask, 8, 4, skipped | {"labelled shadow": 1})
    assert mask.sum() == sum(elements.values())
    assert found.selection.passed == {"tag": 1}


@pytest.mark.parametrize(("element", "size", "why"), [
    ('<mask label="cat" left="0" top="0" width="2" height="2" rle="0, 3"/>', None, "do not match a mask of 2 x 2"),
    ('<mask label="cat" left="79" top="0" width="2" height="2" rle="0, 4"/>', None, "a mask is outside the image"),
    ('<mask label="cat" left="0" top="0" width="2" height="2" rle="0, x"/>', None, "a mask is damaged"),
    ('<polygon label="cat" points="1,2;3"/>', None, "a polygon is damaged"),
    ('<cuboid label="cat" xtl1="1"/>', None, "type cuboid cannot be drawn"),
    (boxed(0, "cat"), 'height="0" width="80"', "no usable height"),
    (boxed(0, "cat"), 'height="30" width="40"', "40 x 30 pixels, but the image has 80 x 60"),
])  # fmt: skip
def test_cvat_import_keeps_other_images_after_a_bad_region(tmp_path, element, size, why):
    bad = cvat(element, size=size or 'height="60" width="80"').replace("</annotations>", "")
    good = cvat(boxed(1, "cat"), name="p2.png").replace("<annotations>", "")
    found = imported(tmp_path, bad + good, "cvat")
    assert list(found.masks) == ["p2"]
    assert why in found.selection.left_out["p1.png"]
    refused(r"image p1\.png: ", imported, tmp_path, f"{bad}</annotations>", "cvat")


def test_cvat_import_rejects_video_tracks(tmp_path):
    content = '<annotations><track id="0" label="cat"><box frame="0"/></track></annotations>'
    refused(r"tracks of a video; export the annotations as CVAT for images 1\.1", imported, tmp_path, content, "cvat")


def test_label_studio_accounts_are_separate_people(tmp_path):
    """Test files with one image per account and no regions. Any person can import a file with a single account."""

    def read(person, *accounts):
        tasks = [task(f"image {number}", {"completed_by": account, "result": [], "no_region": [60, 80]})
                 for number, account in enumerate(accounts)]  # fmt: skip
        (tmp_path / "a.json").write_text(json.dumps(tasks))
        return list(module_of("label-studio").read(tmp_path / "a.json", person))

    anna = {"id": 8, "email": "anna@example.org"}
    accounts = [7, anna, {"email": "b@c"}, {"email": "b@d"}]
    refused(r"one of: 7, anna, b\.c, b\.d$", read, "ada", *accounts)
    assert [read(person, *accounts) for person in ("7", "anna", "b.c", "b.d")] == [
        [f"image {number}"] for number in range(4)
    ]
    for account in (7, anna, None):
        assert read("ada", account, account) == ["image 0", "image 1"]


def test_coco_annotations_are_separated_by_person(tmp_path):
    size = {"height": 1, "width": 2}
    annotation = {"image_id": 1, "segmentation": {"size": [1, 2], "counts": [0, 1, 1]}}
    other = {"image_id": 1, "segmentation": {"size": [1, 2], "counts": [1, 1]}, "person": "bob"}
    content = {"images": [{"id": 1, "file_name": "a.jpg"} | size], "annotations": [annotation, other]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert module_of("coco").read(tmp_path / "a.json", "bob")["a.jpg"].tolist() == [[False, True]]
    content["annotations"] = [annotation, annotation | {"segmentation": other["segmentation"]}]
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert module_of("coco").read(tmp_path / "a.json", "bob")["a.jpg"].tolist() == [[True, True]]
