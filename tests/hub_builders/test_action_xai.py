"""Tests of ACT-X, whose answers a language model accepts as classes, and of MPII.

The answers of the language model are stored. Masks come from people who pointed at regions.
"""

import json
import threading
import time
import traceback
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import datasets
import huggingface_hub
import numpy as np
import pytest
from built_samples import built_by
from PIL import Image
from refusals import refused
from scipy.io import savemat

from saliency_bench import build
from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _language_model, action_xai

SIZE, REASON = (64, 48), "Because he is."


def actx(root, entries, folder="ACT-X"):
    """Write ACT-X files from `entries`: {split: {question id: (image, answer)}}."""
    (root / folder / "textual").mkdir(parents=True)
    (root / "images").mkdir()
    for split, listed in entries.items():
        told = {key: {"iid": image, "ans": answer, "exp": [REASON]} for key, (image, answer) in listed.items()}
        (root / folder / f"textual/exp_{split}_split.json").write_text(json.dumps(told))
        (root / folder / f"visual/{split}").mkdir(parents=True)
        for image, _ in listed.values():
            Image.effect_noise(SIZE, 60).convert("RGB").save(root / f"images/{image}.jpg")
    return root


ENTRIES = {"train": {"t1": ("000001", "ironing"), "t2": ("000002", "general")},
           "val": {"v1": ("000003", "ironing"), "v2": ("000003", "skating, ice")}}  # fmt: skip


@pytest.fixture
def source(tmp_path):
    root, maps = actx(tmp_path, ENTRIES), np.zeros((3, 24, 32))
    maps[0, 2:10, 2:10] = maps[1, 4:12, 2:10] = 1
    maps[2, 6:14, 2:10] = 0.4  # the maximum of this annotator's map
    np.save(root / "ACT-X/visual/val/v1.npy", maps)
    return root


built = partial(built_by, action_xai)


def test_question_answer_pairs_are_queried_once(source, server, tmp_path):
    folder = build("action-xai", tmp_path / "out", source=source, progress=False, server=server.address)
    assert len(server.requests) == 3
    assert server.requests[1][2]["messages"][0]["content"] == (  # P0, appendix C
        "Can the following question-answer pair be restructured into a classification problem? "
        "Question: ‘What is the person doing?’ Answer: ‘ironing’. If yes, respond with ‘yes’. If no, respond with ‘no’."
    )
    again = build("action-xai", tmp_path / "again", source=source, progress=False)  # needs no server and no token
    rows = datasets.concatenate_datasets(list(datasets.load_dataset(str(again)).values()))
    assert rows.features["label"].names == ["ironing", "skating, ice"]
    assert sorted(rows["image_id"]) == ["t1", "v1", "v2"]
    assert (folder / "build_report.json").read_bytes() == (again / "build_report.json").read_bytes()
    lines = [json.loads(line) for line in (source / "answers.jsonl").read_text().splitlines()]
    assert [line["reply"] for line in lines] == ["No.", "Yes", "Yes"]
    assert {line["model"] for line in lines} == {"gpt-4o-mini"}
    assert (folder / "answers.jsonl").read_bytes() == (source / "answers.jsonl").read_bytes()
    (source / "answers.jsonl").unlink()
    build("action-xai", tmp_path / "third", source, progress=False, answers=str(folder / "answers.jsonl"))
    assert len(server.requests) == 3


def annotations(path, frames):
    """Write annotations like MPII Human Pose, with nested structures. frames: {name: number of the video, or None}."""
    listed = np.zeros((1, len(frames)), dtype=[("image", object), ("annorect", object), ("vididx", object)])
    for place, (name, video) in enumerate(frames.items()):
        listed[0, place] = ({"name": name}, {"x1": 3.0}, np.empty((0, 0)) if video is None else float(video))
    path.parent.mkdir(exist_ok=True)
    savemat(path, {"RELEASE": {"annolist": listed, "version": "12", "img_train": np.ones((1, len(frames)))}})


@pytest.mark.parametrize("place", ["", "images", "mpii_human_pose_v1_u12_2"])
def test_frames_of_a_video_form_a_group(source, place):
    frames = {"000001.jpg": 7, "000003.jpg": 7, "000002.jpg": None}
    annotations(source / place / "mpii_human_pose_v1_u12_1.mat", frames)
    samples, log = built(source, ask=False)
    groups = {name: sample["group"] for name, sample in samples.items()}
    assert groups == {"t1": "video 7", "v1": "video 7", "v2": "video 7", "t2": "000002"}
    assert not any("mpii" in remark["id"] for remark in log.remarks)


def test_mpii_annotations_accept_one_image_and_reject_damage(source):
    path = source / "mpii_human_pose_v1_u12_1.mat"
    assert any(path.name == remark["id"] for remark in built(source, ask=False)[1].remarks)
    annotations(path, {"000003.jpg": 2})
    assert built(source, ask=False)[0]["v1"]["group"] == "video 2"
    for damage in (b"", b"MATLAB 5.0 and no more", path.read_bytes()[:300]):
        path.write_bytes(damage)
        refused(r"mpii_human_pose_v1_u12_1\.mat cannot be read", built, source, ask=False)


def test_masks_are_majority_votes_and_groups_are_images(source):
    samples, log = built(source, ask=False)
    votes = np.zeros((24, 32), int)
    for top in (2, 4, 6):
        votes[top : top + 8, 2:10] += 1
    expected = np.asarray(Image.fromarray(votes >= 2).resize(SIZE, 0))
    assert (samples["v1"]["mask"] == expected).all()
    assert samples["v1"]["group"] == samples["v2"]["group"] == "000003"
    assert (samples["t2"]["label"], samples["t1"]["explanations"]) == ("general", [REASON])
    assert {e["id"]: e["reason"] for e in log.left_out} == dict.fromkeys(["t1", "t2", "v2"], "no pointing annotation")


def test_missing_token_error_names_its_variable(source, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused(r"\b3\b.*gpt-4o-mini.*answers\.jsonl.*set OPENAI_API_KEY", built, source)
    refused(r"\b3\b.*answers\.jsonl.*set HF_TOKEN.*hf auth login", built, source, model="someone/model")
    refused(r"set MY_TOKEN\b", built, source, model="someone/model", token="MY_TOKEN")


def test_replies_of_other_models_and_prompts_are_ignored(source, server):
    line = {"model": "other", "prompt": _language_model.WORDING, "question": action_xai.QUESTION, "answer": "ironing"}
    old = line | {"model": "m", "prompt": "older"}
    text = "\n".join(json.dumps(one | {"reply": "no"}) for one in (line, old)) + '\n{"model": "m"}\nhalf a li'
    (source / "answers.jsonl").write_text(text)
    samples, log = built(source, model="m", server=server.address)
    assert "t1" in samples
    assert [remark["text"] for remark in log.remarks if remark["id"] != action_xai.ANNOTATIONS] == [
        f"line {number} is not a reply from a language model and is skipped" for number in (3, 4)
    ]
    built(source, model="m")  # the line that was cut off by a kill does not hide the next answer


class Server(ThreadingHTTPServer):
    """Chat-completion server on loopback.

    `plan` contains the responses to the next requests, each a status or bytes.
    """

    daemon_threads = True

    def __init__(self):
        self.plan, self.requests = [], []
        super().__init__(("127.0.0.1", 0), Route)
        self.address = f"http://127.0.0.1:{self.server_port}"


class Route(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers.get("Authorization"), asked))
        plan = self.server.plan.pop(0) if self.server.plan else None
        if plan == "slow":
            time.sleep(1)
        text = "No." if "Answer: ‘general’" in asked["messages"][0]["content"] else "Yes"
        plan = self.headers["Authorization"].encode() if plan == "echo" else plan
        content = plan if isinstance(plan, bytes) else json.dumps(completion(text)).encode()
        self.send_response(plan if isinstance(plan, int) else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def completion(text):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            "system_fingerprint": ""}  # fmt: skip


@pytest.fixture
def server(monkeypatch):
    """Use the client of huggingface_hub with shorter waiting times."""
    monkeypatch.setattr(_language_model, "WAITS", (0.0, 0.0))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Server() as listening:
        threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
        yield listening
        listening.shutdown()


def test_custom_server_receives_chat_requests_without_hub_token(source, server):
    samples, log = built(source, server=f"{server.address}/v1", model="tiny")
    assert sorted(samples) == ["t1", "v1", "v2"]
    reasons = {entry["id"]: entry["reason"] for entry in log.left_out}
    assert reasons["t2"] == "the language model does not accept 'general' as a class"
    assert len(server.requests) == 3
    path, token, asked = server.requests[0]
    assert path == "/v1/chat/completions"
    assert "hf_secret" not in token  # the server does not belong to Hugging Face
    assert asked["messages"] == [{"role": "user", "content": asked["messages"][0]["content"]}]
    assert (asked["model"], asked["temperature"], asked["seed"]) == ("tiny", 0.0, 0)


def test_hub_providers_receive_the_hub_token(source, server, monkeypatch):
    router = huggingface_hub.inference._providers.CONVERSATIONAL_AUTO_ROUTER
    monkeypatch.setattr(router, "base_url", server.address)
    samples, _ = built(source, model="meta-llama/Llama-3.1-8B-Instruct")
    assert sorted(samples) == ["t1", "v1", "v2"]
    path, token, asked = server.requests[0]
    assert (path, token) == ("/v1/chat/completions", "Bearer hf_secret")
    assert asked["model"] == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("how", ["openai", "server", "named", "named for any model"])
def test_openai_token_is_sent_but_never_stored(source, server, monkeypatch, tmp_path, capfd, how):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-first")
    monkeypatch.setenv("MY_TOKEN", "sk-second")
    monkeypatch.setattr(_language_model, "OPENAI", f"{server.address}/v1")
    options = {"token": "MY_TOKEN"} if "named" in how else {}
    options |= {"server": f"{server.address}/v1"} if how in ("server", "named for any model") else {}
    options |= {"model": "tiny"} if "any" in how else {}
    folder = build("action-xai", tmp_path / "out", source=source, **options)
    path, token, asked = server.requests[0]
    assert (path, token) == ("/v1/chat/completions", f"Bearer {'sk-second' if 'named' in how else 'sk-first'}")
    assert asked["model"] == ("tiny" if "any" in how else "gpt-4o-mini")
    build("action-xai", tmp_path / "again", source=source, **options)
    assert len(server.requests) == 3
    shown = "".join(capfd.readouterr())
    assert not {"token", "server", "answers"} & set(json.loads((folder / "build_report.json").read_text())["options"])
    files = [path for path in (*folder.rglob("*"), *source.rglob("*")) if path.is_file()]
    for secret in ("sk-first", "sk-second"):
        assert secret not in shown
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_echoed_token_is_hidden_in_errors_and_replies(source, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-first")
    server.plan = ["echo"]
    with pytest.raises(UserError, match="did not answer") as caught:
        built(source, server=server.address)
    assert "sk-first" not in "".join(traceback.format_exception(caught.value))
    server.plan = [json.dumps(completion("yes, sk-first")).encode()]
    built(source, server=server.address)
    assert "sk-first" not in (source / "answers.jsonl").read_text()


@pytest.mark.parametrize("token", ["sk-abc123", "$TOKEN"])
def test_token_instead_of_variable_name_is_rejected_and_hidden(source, tmp_path, token):
    with pytest.raises(UserError, match="name of the variable that contains the token") as caught:
        build("action-xai", tmp_path / "out", source=source, token=token)
    assert token not in str(caught.value)
    assert not list(tmp_path.rglob("made_by.json"))


@pytest.mark.parametrize("passing", [429, 503, "slow"])
def test_busy_server_is_retried(source, server, monkeypatch, passing):
    monkeypatch.setattr(_language_model, "SECONDS", 0.3)
    server.plan = [passing, None, passing, passing]
    assert sorted(built(source, server=server.address)[0]) == ["t1", "v1", "v2"]
    assert len(server.requests) == 6
    assert len((source / "answers.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(("plan", "calls", "text"), [
    (401, 2, "401"), (429, 4, "429"), (b"<html>down for maintenance</html>", 2, "did not answer"),
    (b'{"choices": []}', 2, "did not answer"),
    (json.dumps(completion(None)).encode(), 2, "the reply is empty"),
])  # fmt: skip
def test_failing_server_error_keeps_earlier_replies(source, server, plan, calls, text):
    server.plan = [None, plan, plan, plan, plan]
    message = refused(text, built, source, server=server.address)
    assert message.endswith("run the build again (the replies received so far are kept)")
    assert len(server.requests) == calls
    assert len((source / "answers.jsonl").read_text().splitlines()) == 1
    server.plan = []
    assert sorted(built(source, server=server.address)[0]) == ["t1", "v1", "v2"]
    assert len(server.requests) == calls + 2


def test_unreachable_server_and_invalid_address_are_rejected(source):
    refused(r"did not answer: .*refused", built, source, server="http://127.0.0.1:9")
    for wrong in ("localhost", "http://[::", "file:///etc/passwd"):
        refused(r"server=.* is not a URL.*http://", built, source, server=wrong)


def test_token_is_not_sent_over_http(source, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-first")
    message = refused(r"server=http://example\.org/v1 .*https", built, source, server="http://example.org/v1")
    assert "sk-first" not in message


def test_replies_are_parsed_as_yes_or_no():
    for reply, yes in {"Yes": 1, "yes.": 1, "**No**": 0, "NO, it is": 0, "maybe": 0, "": 0}.items():
        log = BuildLog()
        assert _language_model._yes(("q", "a"), reply, log) == yes, reply
        assert len(log.remarks) == (reply in ("maybe", ""))


@pytest.mark.parametrize("fault", ["text", "pickle", "text array", "four axes", "nan", "zeros", "claims too much"])
def test_invalid_maps_are_reported(source, fault):
    path = source / "ACT-X/visual/val/v1.npy"
    arrays = {"text array": np.array([["a"]]), "four axes": np.zeros((1, 2, 3, 4)), "nan": np.full((2, 2), np.nan),
              "zeros": np.zeros((3, 4, 4)), "pickle": np.array([{}, None])}  # fmt: skip
    if fault in arrays:
        np.save(path, arrays[fault], allow_pickle=True)
    else:
        path.write_bytes(b"no array" if fault == "text" else path.read_bytes()[:200])
    samples, log = built(source, ask=False)
    assert samples["v1"]["mask"] is None
    assert "v1" in [entry["id"] for entry in log.left_out]


def test_npz_maps_match_npy_maps(source):
    maps = np.load(source / "ACT-X/visual/val/v1.npy")
    expected = built(source, ask=False)[0]["v1"]["mask"]
    (source / "ACT-X/visual/val/v1.npy").unlink()
    np.savez_compressed(source / "ACT-X/visual/val/v1.npz", maps)
    assert (built(source, ask=False)[0]["v1"]["mask"] == expected).all()
    np.savez_compressed(source / "ACT-X/visual/val/v1.npz", np.zeros((3, 2000, 2000), np.float64))
    assert "unpacks to more than" in built(source, ask=False)[1].left_out[2]["reason"]


def test_invalid_entries_are_reported_and_parts_required(source, tmp_path):
    path = source / "ACT-X/textual/exp_test_split.json"
    odd = {"a": 1, "b": {"iid": "x"}, "c": {"iid": "../../x", "ans": "run"}, "t1": {"iid": 1, "ans": "x"}}
    path.write_text(json.dumps(odd))
    samples, log = built(source, ask=False)
    assert len(samples) == 4
    assert [entry["id"] for entry in log.left_out if entry["what"] == "image"] == ["a", "b", "c"]
    assert [remark["id"] for remark in log.remarks] == [action_xai.ANNOTATIONS, "t1"]
    path.write_text("[1]")
    refused(r"JSON", built, source, ask=False)
    (source / "images").rename(tmp_path / "gone")
    path.unlink()
    refused(r"images/.*MPII.*human-pose", built, source, ask=False)
    (source / "ACT-X/textual").rename(tmp_path / "gone2")
    refused(r"\btextual/", built, source, ask=False)
