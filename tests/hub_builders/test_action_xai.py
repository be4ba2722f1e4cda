"""ACT-X and MPII: classes that a language model accepts (its answers kept), pointing annotations as mask."""

import json
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import numpy as np
import pytest
from PIL import Image

from saliency_bench import build
from saliency_bench.building import Report
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _language_model, action_xai
from saliency_bench.jobs import made

REAL = Path(__file__).parents[3] / "shared" / "data" / "act-x"
SIZE = (64, 48)


def actx(root, entries, folder="ACT-X"):
    """`entries`: {split: {question id: (image, answer)}}."""
    (root / folder / "textual").mkdir(parents=True)
    (root / "images").mkdir()
    for split, listed in entries.items():
        told = {
            key: {"iid": image, "ans": answer, "exp": ["Because he is."]} for key, (image, answer) in listed.items()
        }
        (root / folder / f"textual/exp_{split}_split.json").write_text(json.dumps(told))
        (root / folder / f"visual/{split}").mkdir(parents=True)
        for image, _ in listed.values():
            Image.effect_noise(SIZE, 60).convert("RGB").save(root / f"images/{image}.jpg")
    return root


ENTRIES = {
    "train": {"t1": ("000001", "ironing"), "t2": ("000002", "general")},
    "val": {"v1": ("000003", "ironing"), "v2": ("000003", "skating, ice")},
}


@pytest.fixture
def source(tmp_path):
    root = actx(tmp_path, ENTRIES)
    maps = np.zeros((3, 24, 32))
    maps[0, 2:10, 2:10] = maps[1, 4:12, 2:10] = 1
    maps[2, 6:14, 2:10] = 0.4  # the maximum of this annotator's map
    np.save(root / "ACT-X/visual/val/v1.npy", maps)
    return root


@pytest.fixture
def service(monkeypatch):
    """A language model that takes everything but "general" for a class, and counts what it is asked."""
    asked = []

    class Client:
        def __init__(self, model, provider):
            self.model = model

        def chat_completion(self, messages, **settings):
            asked.append(messages[0]["content"])
            text = "No." if "Answer: general" in asked[-1] else "Yes"
            return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))])

    monkeypatch.setattr(huggingface_hub, "InferenceClient", Client)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "token")
    return asked


def built(source, **options):
    report = Report()
    return {s["image_id"]: s for s in made(action_xai.samples(source, report, **options), report)}, report


def test_each_pair_is_asked_once_and_never_again(source, service, monkeypatch, tmp_path):
    folder = build("action-xai", tmp_path / "out", source=source, progress=False)
    assert len(service) == 3
    assert "Question: What is the person doing?\nAnswer: ironing\n" in service[1]
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    again = build("action-xai", tmp_path / "again", source=source, progress=False)
    assert len(service) == 3
    rows = datasets.concatenate_datasets(list(datasets.load_dataset(str(again)).values()))
    assert rows.features["label"].names == ["ironing", "skating, ice"]
    assert sorted(rows["image_id"]) == ["t1", "v1", "v2"]
    assert (folder / "build_report.json").read_bytes() == (again / "build_report.json").read_bytes()
    lines = [json.loads(line) for line in (source / "answers.jsonl").read_text().splitlines()]
    assert [line["reply"] for line in lines] == ["No.", "Yes", "Yes"]


def test_masks_votes_and_groups(source):
    samples, report = built(source, ask=False)
    votes = np.zeros((24, 32), int)
    votes[2:10, 2:10] += 1
    votes[4:12, 2:10] += 1
    votes[6:14, 2:10] += 1
    expected = np.asarray(Image.fromarray(votes >= 2).resize(SIZE, 0))
    assert (samples["v1"]["mask"] == expected).all()
    assert samples["v1"]["group"] == samples["v2"]["group"] == "000003"
    assert samples["t2"]["label"] == "general"
    assert samples["t1"]["explanations"] == ["Because he is."]
    assert {e["id"]: e["reason"] for e in report.left_out} == dict.fromkeys(
        ["t1", "t2", "v2"], "no pointing annotation"
    )


def test_what_the_model_refuses_is_named(source, service):
    _, report = built(source)
    assert [entry["reason"] for entry in report.left_out if entry["id"] == "t2"] == [
        "the language model does not take 'general' for a class"
    ]


def test_without_answers_and_without_token(source, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match=r"3 answers of .*answers\.jsonl.*hf auth login"):
        built(source)


def test_a_service_that_fails_midway_loses_no_answer(source, service, monkeypatch):
    client = huggingface_hub.InferenceClient
    real = client.chat_completion

    def fails(self, messages, **settings):
        if len(service) == 2:
            raise TimeoutError("no\nanswer")
        return real(self, messages, **settings)

    monkeypatch.setattr(client, "chat_completion", fails)
    with pytest.raises(UserError, match="did not answer: no answer"):
        built(source)
    monkeypatch.setattr(client, "chat_completion", real)
    built(source)
    assert len(service) == 3


def test_answers_of_other_models_and_wordings_do_not_count(source, service):
    line = {"model": "other", "prompt": _language_model.WORDING, "question": action_xai.QUESTION, "answer": "ironing"}
    old = line | {"model": "m", "prompt": "older"}
    text = "\n".join(json.dumps(one | {"reply": "no"}) for one in (line, old)) + '\n{"model": "m"}\nhalf a li'
    (source / "answers.jsonl").write_text(text)
    samples, report = built(source, model="m")
    assert "t1" in samples
    assert [remark["text"] for remark in report.remarks] == [
        "line 3 is no answer and is passed over", "line 4 is no answer and is passed over"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "yes"), [("Yes", 1), ("yes.", 1), ("**No**", 0), ("NO, it is", 0), ("maybe", 0), ("", 0)]
)
def test_replies(reply, yes):
    report = Report()
    assert _language_model._yes(("q", "a"), reply, report) == yes
    assert len(report.remarks) == (reply in ("maybe", ""))


@pytest.mark.parametrize("fault", ["text", "pickle", "text array", "four axes", "nan", "zeros", "claims too much"])
def test_wrong_maps_are_named(source, fault):
    path = source / "ACT-X/visual/val/v1.npy"
    arrays = {"text array": np.array([["a"]]), "four axes": np.zeros((1, 2, 3, 4)), "nan": np.full((2, 2), np.nan),
              "zeros": np.zeros((3, 4, 4)), "pickle": np.array([{}, None])}  # fmt: skip
    if fault in arrays:
        np.save(path, arrays[fault], allow_pickle=True)
    else:
        path.write_bytes(b"no array" if fault == "text" else path.read_bytes()[:200])
    samples, report = built(source, ask=False)
    assert samples["v1"]["mask"] is None
    assert "v1" in [entry["id"] for entry in report.left_out]


def test_packed_maps(source):
    maps = np.load(source / "ACT-X/visual/val/v1.npy")
    expected = built(source, ask=False)[0]["v1"]["mask"]
    (source / "ACT-X/visual/val/v1.npy").unlink()
    np.savez_compressed(source / "ACT-X/visual/val/v1.npz", maps)
    assert (built(source, ask=False)[0]["v1"]["mask"] == expected).all()
    np.savez_compressed(source / "ACT-X/visual/val/v1.npz", np.zeros((3, 2000, 2000), np.float64))
    assert "unpacks to more than" in built(source, ask=False)[1].left_out[2]["reason"]


def test_odd_entries_and_missing_parts(source, tmp_path):
    path = source / "ACT-X/textual/exp_test_split.json"
    path.write_text(
        json.dumps({"a": 1, "b": {"iid": "x"}, "c": {"iid": "../../x", "ans": "run"}, "t1": {"iid": 1, "ans": "x"}})
    )
    samples, report = built(source, ask=False)
    assert len(samples) == 4
    assert [entry["id"] for entry in report.left_out if entry["what"] == "image"] == ["a", "b", "c"]
    assert report.remarks[0]["id"] == "t1"
    path.write_text("[1]")
    with pytest.raises(UserError, match="holds no JSON object"):
        built(source, ask=False)
    (source / "images").rename(tmp_path / "gone")
    path.unlink()
    with pytest.raises(UserError, match=r"has no images/ of MPII.*human-pose"):
        built(source, ask=False)
    (source / "ACT-X/textual").rename(tmp_path / "gone2")
    with pytest.raises(UserError, match="has no textual/"):
        built(source, ask=False)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real samples are not here")
def test_real_images(tmp_path):
    answers = sorted(json.loads((REAL / "adict.json").read_text()))[10:13]
    images = sorted(path.stem for path in (REAL / "mpii_images").iterdir())
    root = actx(tmp_path, {"val": dict(zip("abc", zip(images, answers, strict=True), strict=True))}, "act-x")
    for path in (root / "images").iterdir():
        path.write_bytes((REAL / "mpii_images" / path.name).read_bytes())
    assert [sample["label"] for sample in built(root, ask=False)[0].values()] == answers
