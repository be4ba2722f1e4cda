"""Tests of the guard in front of Gradio on the leaderboard: request bodies, uploads, calls and other sites."""

import asyncio
import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason='needs pip install -e ".[test]"')
from gradio.utils import get_upload_folder
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from uvicorn import Config

from saliency_bench.spaces.leaderboard import app, keep_files_private, unfolded
from saliency_bench.spaces.leaderboard import guard as guarding
from saliency_bench.spaces.leaderboard.guard import Guard, RefusedError, Uploads
from saliency_bench.spaces.leaderboard.unfolded import PREFIX, Folders, remove
from saliency_bench.spaces.pages.requests import TimedProtocol

API = "/gradio_api"
HOST = {"origin": "http://testserver"}


class App:
    """Stand-in for Gradio that reads the request body, optionally in pieces. `account` is signed in."""

    def __init__(self, uploads=None, calls=None, account=None, hides_errors=False):
        self.guard, self.account, self.hides_errors = Guard(self.read, uploads, calls, {3}), account, hides_errors
        self.bodies = []
        self.client = TestClient(self, raise_server_exceptions=False)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and self.account:
            info = {"expires_at": time.time() + 60, "userinfo": {"preferred_username": self.account}}
            scope["session"] = {"oauth_info": info}
        await self.guard(scope, receive, send)

    async def read(self, scope, receive, send):
        body, message = b"", {"more_body": True}
        try:
            while message.get("more_body"):
                message = await receive()
                body += message.get("body", b"")
        except RefusedError:
            if not self.hides_errors:
                raise
            await PlainTextResponse("There was an error parsing the body", 400)(scope, receive, send)
            return
        self.bodies.append(body)
        await PlainTextResponse("read")(scope, receive, send)

    def post(self, path, **given):
        answer = self.client.post(f"{API}/{path}", **given)
        assert answer.text.count("\n") <= 1
        return answer.status_code, answer.text.strip()


def upload(app, content=b"PK", **headers):
    return app.post("upload", files={"files": ("run.zip", content)}, headers=headers)


def test_local_page_accepts_no_uploads():
    app = App(account="ada")
    assert upload(app) == (403, "this page accepts no uploads")
    assert app.post("component_server", files={"file": ("x", b"a")})[0] == 403
    assert (app.post("process_recording", files={"file": ("x", b"a")})[0], app.bodies) == (403, [])


def test_gradio_keeps_files_in_a_private_folder(monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")  # monkeypatch restores it afterwards
    monkeypatch.delenv("GRADIO_TEMP_DIR")
    keep_files_private()
    folder = Path(get_upload_folder())
    keep_files_private()
    assert (Path(get_upload_folder()), folder.stat().st_mode & 0o777) == (folder, 0o700)


def test_gradio_server_limits_time_for_headers():
    assert app
    config = Config(None, log_config=None)
    config.load()
    assert config.http_protocol_class is TimedProtocol


def test_upload_requires_signing_in(tmp_path):
    assert upload(App(Uploads(tmp_path))) == (403, "sign in first")
    app = App(Uploads(tmp_path), account="ada")
    assert upload(app, b"PK" * 100)[0] == 200
    assert app.post("component_server", files={"file": ("x", b"a")}) == (415, "this URL accepts no files")
    app.account = None
    assert (upload(app)[0], len(app.bodies)) == (403, 1)


def test_expired_sign_in_is_ignored():
    info = {"expires_at": time.time() - 1, "userinfo": {"preferred_username": "ada"}}
    assert guarding.account_of({"session": {"oauth_info": info}}) is None
    assert guarding.account_of({"session": {}}) is None
    assert guarding.account_of({}) is None


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://testserver.evil.example", ""])
def test_requests_from_other_sites_are_rejected(tmp_path, origin):
    app = App(Uploads(tmp_path), account="ada")
    assert upload(app, origin=origin)[0] == 403
    given = {"origin": origin, "x-forwarded-host": origin.removeprefix("https://")}
    assert (app.post("component_server", json={}, headers=given)[0], app.bodies) == (403, [])


def test_requests_from_own_site_are_accepted(tmp_path, monkeypatch):
    app = App(Uploads(tmp_path), account="ada")
    assert upload(app, **HOST)[0] == 200
    monkeypatch.setenv("SPACE_HOST", "a-b.hf.space, board.example")
    assert upload(app, origin="https://board.example")[0] == 200
    assert upload(app, origin="https://example")[0] == 403


@pytest.mark.parametrize("hides_errors", [False, True])
@pytest.mark.parametrize("stated", [True, False])
def test_request_bodies_are_limited_in_size(monkeypatch, stated, hides_errors):
    monkeypatch.setattr(guarding, "LARGEST", 1000)
    app = App(calls={1: 1}, hides_errors=hides_errors)
    for path in ("component_server", "queue/join"):
        for size in (1001, 500_000):
            content = b"x" * size if stated else iter([b"x" * 500] * (size // 500 + 1))
            assert app.post(path, content=content) == (413, "the request has more than 1,000 bytes")
    assert app.bodies == []
    assert app.post("component_server", content=b'{"component_id": 3}'.ljust(1000)) == (200, "read")


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [("LARGEST_OF_ALL", 1500, (503, "the server is receiving too much data at the moment; try again later")),
     ("PART", 0.1, (408, "the request did not arrive in time; try again"))],
)  # fmt: skip
def test_slow_requests_are_limited_in_memory_and_time(monkeypatch, name, value, refused):
    monkeypatch.setattr(guarding, name, value)
    app = App()
    content = b'{"component_id": 3}'.ljust(1000)

    async def sent(answers):
        parts = iter([{"type": "http.request", "body": content, "more_body": True}])

        async def receive():
            if (part := next(parts, None)) is not None:
                return part
            if name == "PART":
                await asyncio.sleep(5)
            answers.append(app.post("component_server", content=content))
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            answers.append(message)

        headers = [(b"host", b"testserver")]
        scope = {"type": "http", "method": "POST", "path": f"{API}/component_server", "headers": headers}
        await app(scope, receive, send)

    answers = []
    asyncio.run(sent(answers))
    assert (refused in answers) if name == "LARGEST_OF_ALL" else (answers[0]["status"] == refused[0])
    assert app.post("component_server", content=content) == (200, "read"), "the bytes are free again"


def test_invalid_content_length_is_rejected():
    assert App().post("component_server", content=b"x", headers={"content-length": "-5"})[0] == 400
    assert App().post("component_server", content=b"x", headers={"content-length": "9" * 30})[0] == 400


def test_uploads_are_limited_in_size(tmp_path, monkeypatch):
    monkeypatch.setattr(guarding, "LARGEST_UPLOAD", 1000)
    app = App(Uploads(tmp_path), account="ada")
    assert upload(app, b"x" * 1001)[0] == 413
    form = {"content-type": "multipart/form-data; boundary=b"}
    assert app.post("upload", content=iter([b"x" * 600] * 2), headers=form)[0] == 413
    assert upload(app, b"x" * 100)[0] == 200


@pytest.mark.parametrize(("path", "sent"), [
    *(("queue/join", sent) for sent in (
        {"data": [], "fn_index": 1}, {"data": [1, 2], "fn_index": 9}, {"data": 5, "fn_index": 1}, {"fn_index": 1}, [],
        5, {"data": [1, 2], "fn_index": [1]})),
    *(("component_server", sent) for sent in (
        {}, [], 3, {"component_id": 4}, {"component_id": "3"}, {"component_id": [3]})),
])  # fmt: skip
def test_invalid_calls_are_rejected(path, sent):
    app = App(calls={1: 2})
    assert app.post(path, json=sent) == (400, "the request does not call a function of this page")
    assert app.bodies == []


def test_valid_queue_call_reaches_gradio_unchanged():
    app = App(calls={1: 2})
    parts = [b'{"data": [1, ', b'"x"], "fn', b'_index": 1}']
    assert app.post("queue/join", content=iter(parts)) == (200, "read")
    assert (app.bodies, app.post("queue/join", content=b"[" * 100_000)[0]) == ([b"".join(parts)], 400)


@pytest.mark.parametrize("path", ["run/check", "api/check", "call/check", "vibe-edit", "upload_progress", "login"])
def test_unused_urls_return_404(path):
    assert App().post(path, json={"data": []}) == (404, "this URL accepts no data")


def test_other_sites_can_read():
    assert App().client.get(f"{API}/upload_progress", headers={"origin": "https://evil.example"}).status_code == 200


@pytest.mark.parametrize("cause", [HTTPException(404), None])
def test_stream_of_unknown_session_ends_without_traceback(cause):
    async def gradio(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("response already started") from cause

    with nullcontext() if cause else pytest.raises(RuntimeError, match="already started"):
        assert TestClient(Guard(gradio)).get(f"{API}/queue/data").text == ""


def room(uploads, account, size):
    with uploads.room(account, size):
        return True


def no_room(words, *given):
    with pytest.raises(RefusedError, match=words):
        room(*given)


@pytest.mark.parametrize("jump", [3601, -3601])  # an hour later, or the clock is set back
def test_uploads_are_limited_in_total_per_account_and_hour(tmp_path, jump):
    now = [time.time()]
    uploads = Uploads(tmp_path / "gradio", total=1000, each=600, often=3, clock=lambda: now[0])
    with uploads.room("ada", 500), uploads.room("bob", 500):
        no_room("at the moment", uploads, "cleo", 1)
    assert room(uploads, "cleo", 600)
    no_room("cleo has uploaded too much", uploads, "cleo", 1)
    stored = tmp_path / "gradio" / "hash" / "run.zip"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"x" * 900)
    no_room("at the moment", uploads, "dora", 101)
    for _ in range(3):
        assert room(uploads, "dora", 1)
    no_room("dora has uploaded too much", uploads, "dora", 1)
    now[0] += jump
    assert room(uploads, "cleo", 600)
    assert not stored.parent.exists()
    assert list(uploads._seen) == ["cleo"]


def test_rejected_upload_frees_its_bytes(tmp_path):
    uploads = Uploads(tmp_path, total=1000, each=1000)
    with pytest.raises(RefusedError), uploads.room("ada", 100):
        raise RefusedError(413, "broken")
    assert uploads._coming == 0


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(unfolded.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_account_keeps_only_its_newest_folders(temporary):
    folders = Folders(60)
    own = [folders.make("ada") for _ in range(5)]
    other = folders.make("bob")
    assert {str(path) for path in temporary.iterdir()} == {*own[-3:], other}


@pytest.mark.parametrize("changed", [0, 2**32])
def test_old_folders_are_removed_at_start(temporary, changed):
    old, new, foreign = temporary / f"{PREFIX}old", temporary / f"{PREFIX}new", temporary / "saliency-bench-other"
    for path in (old, new, foreign):
        path.mkdir()
        (path / "summary.json").write_text("{}")
    for path in (old, foreign):
        os.utime(path, (changed, changed))
    Folders(60)
    assert {path.name for path in temporary.iterdir()} == {new.name, foreign.name}


def test_foreign_folders_are_not_removed(temporary):
    kept = temporary / "run"
    kept.mkdir()
    remove(str(kept))
    remove(None)
    remove(str(kept / f"../run/../{PREFIX}x/.."))
    assert kept.is_dir()
