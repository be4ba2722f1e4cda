"""Tests of the annotation protocol and of the requests of the page: assignments, permissions, and studies that grow."""

from io import BytesIO

import numpy as np
import pytest
from datasets import Dataset, Image
from hypothesis import given
from hypothesis import strategies as st
from pages import answer_all, client_of, dataset, joined, study_of
from PIL import Image as Pillow
from refusals import refused

from saliency_bench.data.annotations import checksum
from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.annotating import choose_known, open_study
from saliency_bench.studies.annotation_report import annotation_report, report_rows
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.images import StudyImages
from saliency_bench.studies.overview import AnnotationOverview
from saliency_bench.studies.runs import mask_of, runs_of
from saliency_bench.utils.pictures import UnreadableError, png

STUDY = {"count": 6}
MASK = np.zeros((60, 80), bool)
MASK[3:9, 70:] = True


@pytest.fixture
def unit(client, key):
    return client.get("/api/state", headers=key).json()["tasks"][0]["unit"]


def sent(unit, request="r" * 16, **changed):
    return {"unit": unit, "kind": "mask", "runs": runs_of(MASK), "request": request, "seconds": 1.5, **changed}


@given(st.integers(1, 5), st.integers(1, 6), st.randoms())
def test_run_lengths_decode_to_the_same_mask(height, width, random):
    mask = np.array([random.random() > 0.5 for _ in range(height * width)]).reshape(height, width)
    runs = runs_of(mask)
    literal = [pixel for index, run in enumerate(runs) for pixel in [index % 2 == 1] * run]
    assert literal == mask.ravel().tolist()
    assert all(run > 0 for run in runs[1:])
    np.testing.assert_array_equal(mask_of(runs, height, width), mask)


@pytest.mark.parametrize("runs", [
    [3], [2, 3], [-1, 5], [2.0, 2], ["2", 2], [True, 3], "22", None, [10**30], [0, 1, 1, 1, 1, 0], {"0": 4},
    [0] * 10**6 + [4], [0, 5], [True] * 4,
])  # fmt: skip
def test_run_lengths_of_another_size_are_rejected(runs):
    refused("2 x 2", mask_of, runs, 2, 2)


def test_posted_answer_is_stored_once(annotating, client, key):
    state = client.get("/api/state", headers=key).json()
    assert (state["done"], state["total"], len(state["tasks"])) == (0, 6, 2)
    unit = state["tasks"][0]["unit"]
    image = client.get("/api/image", params={"unit": unit}, headers=key)
    assert image.headers["content-type"] == "image/png"
    after = client.post("/api/answer", json=sent(unit), headers=key).json()
    assert (after["revision"], after["done"]) == (1, 1)
    assert client.post("/api/answer", json=sent(unit), headers=key).json()["revision"] == 1, "a double click"
    (stored,) = annotating.study.answers(last=False)
    np.testing.assert_array_equal(stored.pixels, MASK)
    position = annotating.images.positions[unit]
    assert stored.image_sha256 == checksum(annotating.images.rows[position]["image"])


def test_people_see_only_their_assigned_images_and_answers(annotating, client):
    first, second = joined(client, "a"), joined(client, "b")
    unit = client.get("/api/state", headers=first).json()["tasks"][0]["unit"]
    client.post("/api/answer", json=sent(unit), headers=first)
    others = [task["unit"] for task in client.get("/api/state", headers=second).json()["tasks"]]
    hidden = next(one for one in annotating.images.units if one not in others)
    assert client.get("/api/image", params={"unit": hidden}, headers=second).status_code == 403
    for path in ("/api/again", "/api/image", "/api/superpixels"):
        answer = client.get(path, params={"unit": hidden}, headers=second)
        assert answer.status_code in (400, 403)
        assert "runs" not in answer.text
    assert client.get("/api/again", params={"unit": unit}, headers=first).json()["runs"] == runs_of(MASK)
    assert "runs" not in client.get("/api/state", headers=second).text
    review = client.post("/api/review", json={"answer": 1, "verdict": "accept", "request": "v"}, headers=second)
    assert (review.status_code, annotating.study.reviews()) == (400, {})


def test_invalid_answers_are_rejected(annotating, client, key, unit):
    for changed, words in (
        ({"unit": "image-999"}, "not assigned to you"), ({"kind": "draw"}, "kind must be one of"),
        ({"runs": [4799]}, "60 x 80"), ({"runs": [4800]}, "nothing is marked"), ({"runs": {"a": 1}}, "60 x 80"),
        ({"request": ""}, "request must be"),
    ):  # fmt: skip
        answer = client.post("/api/answer", json=sent(unit) | changed, headers=key)
        assert (answer.status_code, words in answer.json()["error"]) == (400, True), changed
        assert annotating.study.answers() == [], changed


def test_page_runs_only_its_own_scripts(client):
    page = client.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "http" not in page.text


def test_rejected_answer_is_redrawn_and_reviewed_again(annotating, client, key, unit):
    client.post("/api/answer", json=sent(unit), headers=key)
    reviewer = {"X-Key": annotating.study.join(role="reviewer").key}
    state = client.get("/api/state", headers=reviewer).json()
    assert [task["runs"] for task in state["tasks"]] == [runs_of(MASK)]
    assert annotating.study.people()[0] not in str(state["tasks"])
    verdict = {"answer": state["tasks"][0]["answer"], "verdict": "reject", "comment": "<b>", "request": "v1"}
    refused = client.post("/api/review", json=verdict | {"comment": " \n"}, headers=reviewer)
    assert refused.json() == {"error": "a rejection needs a comment that explains what should be changed"}
    assert client.post("/api/review", json=verdict, headers=reviewer).json()["tasks"] == []
    assert annotating.counted() == {}
    first = client.get("/api/state", headers=key).json()["tasks"][0]
    assert (first["unit"], first["comment"], first["runs"]) == (unit, "<b>", runs_of(MASK))
    back = client.get("/api/again", params={"unit": unit}, headers=key).json()
    assert back == first, "going back shows the comment, too"
    client.post("/api/answer", json=sent(unit, "s" * 16, runs=runs_of(~MASK)), headers=key)
    again = client.get("/api/state", headers=reviewer).json()["tasks"]
    assert [task["runs"] for task in again] == [runs_of(~MASK)]
    assert (client.get("/api/state", headers=key).json()["done"], list(annotating.counted())) == (1, [unit])


def test_review_rejects_invalid_and_outdated_answer_ids(annotating, client, key, unit):
    for request in ("r" * 16, "s" * 16):
        client.post("/api/answer", json=sent(unit, request), headers=key)
    reviewer = {"X-Key": annotating.study.join(role="reviewer").key}
    verdict = {"verdict": "accept", "request": "v"}
    for answer in (True, 1.0, "1", None, [1], 0, -1, 10**30, 2**40, 1, 77):
        refused = client.post("/api/review", json=verdict | {"answer": answer}, headers=reviewer)
        assert (refused.status_code, len(refused.json()["error"].splitlines())) == (400, 1), answer
        assert annotating.study.reviews() == {}, answer
    assert client.post("/api/review", json=verdict | {"answer": 2}, headers=reviewer).json()["total"] == 1


def drawn_by(annotating, person):
    return answer_all(annotating, person, kind="mask", runs=runs_of(MASK))


def test_honeypots_go_to_everybody_and_are_not_counted(tmp_path):
    annotating = study_of(tmp_path, dataset(10, masks=4), honeypots=2, honeypot_every=3, annotators=1)
    pots = set(annotating.honeypots)
    assert len(pots) == 2
    totals, lists = [], []
    for person in ("p-a", "p-b"):
        totals.append(annotating.state(person)["total"])
        lists.append(drawn_by(annotating, person))
    first, second = lists
    assert totals == [len(first), len(second)], "the total of the first page includes the honeypots"
    assert pots <= set(first)
    assert set(first) == set(annotating.images.units)
    assert set(second) <= pots, "the other images have enough people"
    for block in range(2):
        assert len(pots & set(first[3 * block : 3 * block + 3])) == 1
    assert not pots & set(annotating.counted())
    refused("but the dataset has 4 such", choose_known, annotating.images, 5, 0, 0)


def test_honeypot_score_is_iou_of_first_answer(tmp_path):
    annotating = study_of(tmp_path, dataset(10, masks=4), honeypots=1, honeypot_every=2)
    (pot,), person = annotating.honeypots, "p-a"
    answer_all(annotating, person)
    runs = runs_of(annotating._known(pot))
    assert annotating.save(person, sent(pot, runs=runs)).revision == 2
    assert annotating.honeypot_scores() == {person: [0.0]}  # the first answer was "no region"


def test_only_missing_and_per_person_limit_the_images(tmp_path):
    annotating = study_of(tmp_path, dataset(10, masks=4), only_missing=True, per_person=3)
    assert annotating.units == [f"image-{index:03d}" for index in range(4, 10)]
    assert (annotating.state("p-a")["total"], len(drawn_by(annotating, "p-a"))) == (3, 3)


def test_unreadable_image_can_be_skipped(tmp_path):
    from datasets import Dataset, Features, Value

    broken = [{"bytes": b"no picture", "path": None}, {"bytes": png(MASK), "path": None}]
    kinds = Features({"image_id": Value("string"), "image": Image()})
    rows = Dataset.from_dict({"image_id": ["a", "b"], "image": broken}, features=kinds)
    annotating = study_of(tmp_path, rows)
    tasks = {task["unit"]: task for task in annotating.state("p-a")["tasks"]}
    assert "not an image" in tasks["a"]["error"]
    assert "error" not in tasks["b"]
    annotating.save("p-a", {"unit": "a", "kind": "skip", "reason": "broken", "request": "r" * 16})
    assert annotating.state("p-a")["done"] == 1

    assert list(annotating.images.prepare(progress=False)) == ["a"]
    state = annotating.state("p-b")
    assert (state["total"], [task["unit"] for task in state["tasks"]]) == (1, ["b"]), "unreadable images are left out"


def test_skipped_image_is_reassigned_at_once(tmp_path):
    annotating = study_of(tmp_path, dataset(2), annotators=1)
    skipped = annotating.state("p-a")["tasks"][0]["unit"]
    annotating.save("p-a", sent(skipped, "p-a skips the first", kind="skip"))
    overview = AnnotationOverview(annotating)()
    assert (overview["done"], overview["wanted"], annotating.state("p-a")["total"]) == (0, 2, 2)
    assert drawn_by(annotating, "p-b") == [skipped], "p-a keeps the second image"
    assert (AnnotationOverview(annotating)()["done"], annotating.state("p-c")["tasks"]) == (1, [])
    annotating.save("p-a", sent(skipped, "p-a draws it after all"))
    assert len(annotating.counted()[skipped]) == 2


def test_rows_sharing_an_image_id_are_identified_by_class():
    rows = dataset(4)
    same = rows.remove_columns("image_id").add_column("image_id", ["a", "a", "b", "b"])
    images = StudyImages(same)
    assert images.units == ["a, <b>cat</b>", "a, dog", "b, <b>cat</b>", "b, dog"]
    assert (images.image_id("a, dog"), images.label("a, dog")) == ("a", "dog")
    refused("several rows", StudyImages, rows.remove_columns("image_id").add_column("image_id", ["a"] * 4))


def test_known_masks_follow_selected_rows():
    rows = dataset(6, masks=3)
    assert StudyImages(rows).with_masks() == ["image-000", "image-001", "image-002"]
    assert StudyImages(rows.select([4, 2])).with_masks() == ["image-002"]
    assert StudyImages(rows).known_mask("image-004") is None
    np.testing.assert_array_equal(np.argwhere(StudyImages(rows).known_mask("image-001"))[[0, -1]], [[10, 5], [29, 24]])


def test_ambiguous_masks_need_a_foreground_option(tmp_path, capsys):
    rows = dataset(6, masks=4)
    trimap = np.full((60, 80), 2, np.uint8)
    trimap[10:30, 5:25], trimap[10, 5:25] = 1, 3
    masks = [Pillow.fromarray(trimap) if index in (0, 2) else mask for index, mask in enumerate(rows["mask"])]
    images = StudyImages(Dataset.from_dict({**rows[:], "mask": masks}, features=rows.features))
    with pytest.raises(UnreadableError, match="more than two values; choose the object with --foreground"):
        images.known_mask("image-000")
    pots, practice = choose_known(images, 1, 1, 0)
    assert {*pots, *practice} == {"image-001", "image-003"}
    annotating = open_study(Store(tmp_path / "study.db"), "x", images, "print", honeypots=4, foreground="1 3 255")
    for unit in annotating.honeypots:
        np.testing.assert_array_equal(annotating.known_mask(unit), trimap != 2)
    again = open_study(Store(tmp_path / "study.db"), "x", images, "print")
    np.testing.assert_array_equal(again.known_mask("image-000"), trimap != 2)
    store = Store(tmp_path / "study.db")
    refused("with a different configuration", open_study, store, "x", images, "print", foreground="1")
    refused("3 honeypots need images with a mask, but the dataset has 2 such", choose_known, images, 3, 0, 0)
    assert "2 masks cannot be used, such as the mask of image image-000: a mask with more" in capsys.readouterr().err
    refused("but the dataset has 0 such", choose_known, images, 1, 0, 0, foreground="9")


def test_superpixels_cover_the_image_and_respect_edges():
    pytest.importorskip("skimage")
    from saliency_bench.studies.superpixels import superpixels

    picture = np.zeros((40, 60, 3), np.uint8)
    picture[:, 30:] = 255
    found = superpixels(BytesIO(png(picture)))
    assert (found.shape, found.dtype) == ((40, 60), np.uint16)
    assert not set(found[:, :29].ravel()) & set(found[:, 31:].ravel()), "no superpixel crosses the edge"


def test_superpixels_of_a_large_image_are_computed_once(tmp_path, monkeypatch):
    segmentation = pytest.importorskip("skimage.segmentation")
    asked, slic = [], segmentation.slic

    def counted(pixels, **options):
        asked.append(pixels.shape)
        return slic(pixels, **options)

    monkeypatch.setattr(segmentation, "slic", counted)
    tiles = np.random.default_rng(0).integers(0, 255, (7, 20, 3), np.uint8).repeat(100, axis=0).repeat(100, axis=1)
    picture = {"bytes": png(tiles), "path": None}
    rows = dataset(1).remove_columns(["image", "mask"]).add_column("image", [picture], feature=Image())
    client = client_of(create_app(study_of(tmp_path, rows), assist=True))
    key = joined(client)
    unit = client.get("/api/state", headers=key).json()["tasks"][0]["unit"]
    first, second = (client.get("/api/superpixels", params={"unit": unit}, headers=key) for _ in range(2))
    assert (asked, first.content) == ([(350, 1000, 3)], second.content)
    assert first.headers["content-encoding"] == "gzip"
    assert int(first.headers["content-length"]) < 700 * 2000 / 2
    found = np.frombuffer(first.content, "<u2").reshape(700, 2000)
    assert 50 < found.max() < 1000
    pairs = found.reshape(350, 2, 1000, 2)
    assert (pairs == pairs[:, :1, :, :1]).all(), "superpixels are computed at half the size"


def test_study_resumes_its_settings_and_rejects_others(tmp_path):
    rows = dataset(6, masks=3)
    study_of(tmp_path, rows, annotators=4, honeypots=2)
    store, images = Store(tmp_path / "study.db"), StudyImages(rows)
    again = open_study(store, "noise", images, "print")
    assert (again.settings["annotators"], len(again.honeypots)) == (4, 2)
    words = r"a different configuration \(annotators 4, now 5\); use"
    refused(words, open_study, store, "noise", images, "print", annotators=5)
    refused("a different dataset", open_study, store, "noise", images, "other print")
    refused("--honeypot-every must be at least 2", open_study, store, "new", images, "print", honeypot_every=1)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "study.db")


def opened(store, images=4, fingerprint="four", **options):
    return open_study(store, "noise", StudyImages(dataset(images, masks=2)), fingerprint, **options)


def finish(annotating, letter):
    return len(answer_all(annotating, annotating.study.join(letter * 32).name))


def test_grown_study_assigns_more_people_and_images(store):
    before = opened(store, annotators=1, honeypots=1, honeypot_every=2)
    assert [finish(before, letter) for letter in "ab"] == [4, 1], "the second person gets only the honeypot"
    grown = opened(store, 7, "seven", annotators=2, growing=True)
    assert grown.honeypots == before.honeypots, "honeypots do not change"
    assert (len(grown.units), [finish(grown, letter) for letter in "ab"]) == (6, [3, 6])
    again = opened(store, 7, "seven")
    assert (again.settings, again.units) == (grown.settings, grown.units)
    rows = annotation_report(again)["protocol"]
    assert [(row["annotators"], row["images"]) for row in rows] == [(1, 4), (2, 7)]
    assert ["protocol 1", "1 people per image, 4 images"] in report_rows(annotation_report(again))


def test_study_grows_only_with_grow_option(store):
    opened(store, annotators=2)
    for options in ({"annotators": 3}, {"images": 5, "fingerprint": "five"}):
        refused("--grow to add people or images", opened, store, **options)
    opened(store, annotators=3, growing=True)
    refused(r"a different configuration \(annotators 3, now 2\); use", opened, store, annotators=2)
    assert len(annotation_report(opened(store, annotators=3, growing=True))["protocol"]) == 2, "growing twice adds one"


def test_growing_rejects_other_changes(store):
    opened(store, annotators=2)
    for name, value, before in (("annotators", 1, 2), ("per_person", 3, 0), ("seed", 1, 0), ("honeypots", 1, 0)):
        words = f"--{name.replace('_', '-')} was {before}"
        refused(words, opened, store, growing=True, **{name: value})


def test_growing_rejects_missing_or_changed_images(store):
    finish(opened(store), "a")
    refused("has no image image-003", opened, store, 3, "three", growing=True)
    others = StudyImages(dataset(5, seed=1))
    refused("differs from the annotated image", open_study, store, "noise", others, "others", growing=True)
