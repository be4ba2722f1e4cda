"""Stores of studies: a SQLite file, and a PostgreSQL server of the test's own where Debian's package is installed."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

import saliency_bench as sb
from saliency_bench.studies.store import Store

EXPLAINERS = ["gradient", "edges", "random"]  # of the run below


@pytest.fixture(scope="session")
def done(shapes, resnet, tmp_path_factory):
    """The folder of a run that has kept its maps, of 12 images."""
    out = tmp_path_factory.mktemp("people") / "run"
    sb.run(dataset=str(shapes), model=str(resnet), split="train", limit=12, device="cpu", progress=False, out=out,
           explainers=EXPLAINERS, metrics=["saliency_kae"], keep_maps=True)  # fmt: skip
    return out


def programs():
    """The folder of initdb and postgres, which Debian keeps out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = shutil.which("initdb") or (str(found[-1]) if found else None)
    return None if path is None else Path(path).parent


@pytest.fixture(scope="session")
def postgres():
    """The URL of a server that lives as long as the tests. It refuses to run as root, so root starts it as postgres."""
    psycopg = pytest.importorskip("psycopg")
    if (folder := programs()) is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    user = "postgres" if os.geteuid() == 0 else None
    place = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
    if user:
        shutil.chown(place, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = [folder / "initdb", "-D", place / "data", "-A", "trust", "-U", "study", "--no-sync", "-E", "UTF8"]
    subprocess.run(made, check=True, capture_output=True, cwd="/", user=user)
    options = ["-D", place / "data", "-p", str(port), "-k", place, "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen([folder / "postgres", *options], cwd="/", user=user, stderr=subprocess.DEVNULL)
    url = f"postgresql://study@127.0.0.1:{port}"
    try:
        for _ in range(300):
            with suppress(psycopg.OperationalError), psycopg.connect(f"{url}/postgres"):
                break
            time.sleep(0.1)
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # ends connections, too
        server.wait(timeout=20)
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def database(postgres, request):
    """The URL of a database of this test alone."""
    import psycopg

    name = f"test_{abs(hash(request.node.nodeid)):x}"
    with psycopg.connect(f"{postgres}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgres}/{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Where a store can be made."""
    return tmp_path / "study.db" if request.param == "sqlite" else request.getfixturevalue("database")


@pytest.fixture
def store(place):
    store = Store(place)
    yield store
    store.close()
