"""Tests that pages of other sites, and other host names of this machine, cannot read or change a study."""

import json
import urllib.error
import urllib.request

import pytest
from pages import Served, dataset
from starlette.testclient import TestClient

from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.spaces.pages.origins import OwnHosts

STUDY = {"count": 2}
JOIN = {"request": "a random text of many characters"}


def client(annotating, host, address):
    return TestClient(OwnHosts(create_app(annotating), host), base_url=address)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://[", "", "x"])
def test_requests_from_other_origins_are_rejected(annotating, origin):
    here = client(annotating, "127.0.0.1", "http://127.0.0.1:7860")
    key = here.post("/api/join", json=JOIN, headers={"Origin": "http://127.0.0.1:7860"}).json()["key"]
    for reply in (
        here.post("/api/join", json={"request": "another random text"}, headers={"Origin": origin}),
        here.get("/api/state", headers={"Origin": origin, "X-Key": key}),
    ):
        assert (reply.status_code, list(reply.json())) == (403, ["error"])
    assert len(annotating.study.people()) == 1
    assert here.get("/api/state", headers={"X-Key": key}).status_code == 200


@pytest.mark.parametrize(("host", "name", "status"), [
    ("127.0.0.1", "evil.example:7860", 421), ("localhost", "evil.example", 421),
    ("127.0.0.1", "127.0.0.1.evil.example", 421), ("127.0.0.1", "[", 421), ("127.0.0.1", "127.0.0.1:7860", 200),
    ("127.0.0.1", "LOCALHOST:1", 200), ("127.0.0.1", "[::1]:7860", 200),
    ("0.0.0.0", "visitor-annotate.hf.space", 200), ("192.168.0.7", "laptop.local:7860", 200),
])  # fmt: skip
def test_local_server_rejects_foreign_host_names(annotating, host, name, status):
    here = client(annotating, host, "http://127.0.0.1")
    assert here.get("/", headers={"Host": name}).status_code == status
    assert here.post("/api/join", json=JOIN, headers={"Host": name}).status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_space_host_is_an_allowed_origin_behind_a_proxy(annotating, host, monkeypatch):
    sent = {"Host": "127.0.0.1:7860", "Origin": "https://visitor-annotate.hf.space"}
    here = client(annotating, host, "http://127.0.0.1")
    assert here.post("/api/join", json=JOIN, headers=sent).status_code == 403
    monkeypatch.setenv("SPACE_HOST", "visitor-annotate.hf.space")
    assert here.post("/api/join", json=JOIN, headers=sent).status_code == 200
    assert here.get("/", headers={"Host": "visitor-annotate.hf.space"}).status_code == 200


@pytest.mark.slow
def test_command_checks_host_and_origin(tmp_path):
    dataset(2).save_to_disk(tmp_path / "data")
    with Served(tmp_path / "data", tmp_path / "study.db") as served:
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": served.url.rstrip("/")}, 200),
        ):
            request = urllib.request.Request(served.url + "api/join", json.dumps(JOIN).encode(), headers)
            try:
                found = urllib.request.urlopen(request, timeout=60).status
            except urllib.error.HTTPError as error:
                found = error.code
            assert found == status, headers
