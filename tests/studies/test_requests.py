"""Tests of hostile requests, other sites, slow clients, a full disk, and the file permissions of a store."""

import json
import logging
import os
import socket
import sqlite3
import stat
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from pages import Served, dataset, joined, serving
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from saliency_bench.spaces.annotate.app import LARGEST, create_app
from saliency_bench.spaces.pages import requests
from saliency_bench.spaces.pages import serving as serving_module
from saliency_bench.spaces.pages.origins import OwnHosts
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.result_rows import write_rows

JOIN = {"request": "a random text of many characters"}


@pytest.fixture
def app(annotating):
    return create_app(annotating)


@pytest.fixture
def server(app, monkeypatch):
    """Return (host, port) of a server that waits half a second for a client."""
    monkeypatch.setattr(requests, "PART", 0.5)
    with serving(app, http=requests.TimedProtocol) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2].strip("/"))


def head(path, length, key=""):
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Key: {key}\r\nContent-Length: {length}\r\n\r\n".encode()


def reply(connection):
    """Return the status of the response, or None if the connection was closed without a response."""
    connection.settimeout(5)
    answer = connection.recv(100)
    return int(answer.split()[1]) if answer else None


def key_of(app):
    return TestClient(app).post("/api/join", json=JOIN).json()["key"]


def test_invalid_requests_are_rejected_before_reading_the_body(server):
    for path, length, status in (("/api/answer", 10**7, 401), ("/api/segment", 10, 401),
                                 ("/api/join", 2**16 + 1, 400), ("/api/nothing", 10**7, 404)):  # fmt: skip
        with socket.create_connection(server) as connection:
            connection.sendall(head(path, length, "no key of ours"))
            assert reply(connection) == status, path


def test_body_without_content_length_is_limited(app):
    answer = TestClient(app).post("/api/join", content=(b"x" * 1000 for _ in range(100)))
    assert (answer.status_code, answer.json()["error"]) == (400, "the request has more than 65,536 bytes")


def test_total_size_of_pending_bodies_is_limited(server, app):
    key = key_of(app)
    connections = [socket.create_connection(server) for _ in range(3)]
    for connection in connections:
        connection.sendall(head("/api/answer", LARGEST, key) + bytes(LARGEST - 1))
    statuses = [reply(connection) for connection in connections]
    assert sorted(statuses) == [408, 408, 503], "two bodies fit; the third exceeds the limit"
    body = json.dumps(JOIN).encode()
    with socket.create_connection(server) as connection:
        connection.sendall(head("/api/join", len(body)) + body)
        assert reply(connection) == 200, "the bytes of the first bodies are free again"
    for connection in connections:
        connection.close()


def test_connections_without_a_request_are_closed(server):
    start, connections = time.monotonic(), [socket.create_connection(server) for _ in range(3)]
    for connection, sent in zip(connections, (b"", b"G", b"POST /api/join HTTP/1.1\r\nHost: a\r\n"), strict=True):
        connection.sendall(sent)
    for connection in connections:
        with connection:
            assert reply(connection) is None
    assert time.monotonic() - start < 3


def test_slow_headers_on_a_reused_connection_are_closed(server):
    with socket.create_connection(server) as connection:
        connection.sendall(b"GET /api/about HTTP/1.1\r\nHost: a\r\n\r\n")
        assert reply(connection) == 200
        for letter in b"GET /api/about HTTP/1.1\r\nHost: ":
            try:
                connection.sendall(bytes([letter]))
            except OSError:
                return
            time.sleep(0.1)
    raise AssertionError("the connection stayed")


def test_cut_off_upload_logs_one_line(server, app, caplog):
    key = key_of(app)
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        with socket.create_connection(server) as connection:
            connection.sendall(head("/api/answer", 1000, key) + b"{")
            time.sleep(0.2)
        deadline = time.monotonic() + 5
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.05)
    assert [record.getMessage() for record in caplog.records] == ["POST '/api/answer': the connection was cut off"]
    assert caplog.records[0].exc_info is None


FULL = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))


@pytest.mark.parametrize(("part", "error"), [
    *((part, FULL) for part in ("join", "agree", "person", "answer", "state")),
    ("answer", sqlite3.OperationalError("unable to open database file")),
    ("answer", OSError(28, "No space left on device")),
])  # fmt: skip
def test_full_disk_returns_503_and_logs_one_line(client, part, error, monkeypatch, caplog):
    task = client.get("/api/state", headers=(key := joined(client))).json()["tasks"][0]

    def fail(*args, **options):
        raise error

    places = {"join": "study.Study.join", "person": "study.Study.person", "answer": "study.Study.record",
              "state": "places.Places.refresh", "agree": "introduction.Introduction.agree"}  # fmt: skip
    monkeypatch.setattr(f"saliency_bench.studies.{places[part]}", fail)
    if part in ("join", "agree"):
        answer = client.post("/api/join", json={"request": "another request of 16 letters"})
    elif part == "answer":
        sent = {"unit": task["unit"], "kind": "no_region", "request": "an id of the answer"}
        answer = client.post("/api/answer", json=sent, headers=key)
    else:
        answer = client.get("/api/state", headers=key)
    words = "the answers cannot be stored at the moment; try again later"
    assert (answer.status_code, answer.json()) == (503, {"error": words})
    (record,) = caplog.records
    assert "the store did not answer: " in record.getMessage()
    assert "\n" not in record.getMessage()
    assert record.exc_info is None


def test_locked_store_returns_503_and_loses_no_answer(annotating, app, tmp_path):
    client, key = TestClient(app, raise_server_exceptions=False), key_of(app)
    assert annotating.study.store.patience == serving_module.PATIENCE <= 5
    annotating.study.store.patience = 0.5
    unit = client.get("/api/state", headers={"X-Key": key}).json()["tasks"][0]["unit"]
    sent = [{"unit": unit, "kind": "no_region", "request": f"answer number {number}"} for number in range(8)]

    def send(body):
        return client.post("/api/answer", json=body, headers={"X-Key": key}).status_code

    with closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other, ThreadPoolExecutor(8) as pool:
        other.execute("BEGIN IMMEDIATE")
        start = time.monotonic()
        assert set(pool.map(send, sent)) == {503}
        assert time.monotonic() - start < 4, "requests wait in parallel"
    assert ({send(body) for body in sent}, len(annotating.study.answers(last=False))) == ({200}, len(sent))


def test_stores_and_tables_are_readable_by_owner_only(tmp_path):
    before = os.umask(0)
    try:
        for name in ("payments.csv", "payments.parquet"):
            (tmp_path / name).touch()  # a world-readable file is replaced
            write_rows(tmp_path / name, ("person",), [("p-a",)])
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        (tmp_path / "study.db").touch()  # so that it is open to others when it is filled
        store = Store(tmp_path / "study.db")
        store.study("annotate", "study")
        copies = [store.backup(tmp_path / "copy.db")]
        files = [*tmp_path.glob("study.db*"), *copies]
        assert len(files) == 4, "with two files of SQLite"
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        store.close()
    finally:
        os.umask(before)


STUDY = {"count": 2}


def client(annotating, host, address):
    return TestClient(OwnHosts(create_app(annotating), host), base_url=address)


def test_requests_from_other_origins_are_rejected(annotating):
    here = client(annotating, "127.0.0.1", "http://127.0.0.1:7860")
    key = here.post("/api/join", json=JOIN, headers={"Origin": "http://127.0.0.1:7860"}).json()["key"]
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://[", "", "x"):
        for reply in (
            here.post("/api/join", json={"request": "another random text"}, headers={"Origin": origin}),
            here.get("/api/state", headers={"Origin": origin, "X-Key": key}),
        ):
            assert (reply.status_code, list(reply.json())) == (403, ["error"]), origin
    assert len(annotating.study.people()) == 1
    assert here.get("/api/state", headers={"X-Key": key}).status_code == 200


def test_local_server_rejects_foreign_host_names(annotating):
    for host, name, status in (
        ("127.0.0.1", "evil.example:7860", 421), ("localhost", "evil.example", 421),
        ("127.0.0.1", "127.0.0.1.evil.example", 421), ("127.0.0.1", "[", 421), ("127.0.0.1", "127.0.0.1:7860", 200),
        ("127.0.0.1", "LOCALHOST:1", 200), ("127.0.0.1", "[::1]:7860", 200),
        ("0.0.0.0", "visitor-annotate.hf.space", 200), ("192.168.0.7", "laptop.local:7860", 200),
    ):  # fmt: skip
        here = client(annotating, host, "http://127.0.0.1")
        assert here.get("/", headers={"Host": name}).status_code == status, name
        assert here.post("/api/join", json=JOIN, headers={"Host": name}).status_code == status, name


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_space_host_is_an_allowed_origin_behind_a_proxy(annotating, host, monkeypatch):
    sent = {"Host": "127.0.0.1:7860", "Origin": "https://visitor-annotate.hf.space"}
    here = client(annotating, host, "http://127.0.0.1")
    assert here.post("/api/join", json=JOIN, headers=sent).status_code == 403
    monkeypatch.setenv("SPACE_HOST", "visitor-annotate.hf.space")
    assert here.post("/api/join", json=JOIN, headers=sent).status_code == 200
    assert here.get("/", headers={"Host": "visitor-annotate.hf.space"}).status_code == 200


@pytest.mark.slow
def test_command_checks_host_and_origin_and_links_a_reviewer(tmp_path):
    pytest.importorskip("skimage", reason="needs scikit-image")
    dataset(2).save_to_disk(tmp_path / "data")
    with Served(tmp_path / "data", tmp_path / "study.db", "--reviewer", "--assist") as served:
        state = served.call("api/state", served.links["review"].partition("#key=")[2])
        assert (state["role"], state["assist"]) == ("reviewer", True)
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
