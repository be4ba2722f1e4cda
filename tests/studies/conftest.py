"""Stores of studies: a SQLite file and, where Debian's package is installed, a PostgreSQL server for these tests."""

from itertools import count

import pytest
from pages import chromium, client_of, dataset, joined, study_of
from postgres import Postgres, programs

import saliency_bench as sb
from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.answer_store import Store

EXPLAINERS = ["gradient", "edges", "random"]  # explainers of the run below


@pytest.fixture(scope="session")
def done(shapes, resnet, tmp_path_factory):
    """Return the folder of a run of 12 images that stores its maps."""
    out = tmp_path_factory.mktemp("people") / "run"
    sb.run(dataset=str(shapes), model=str(resnet), split="train", limit=12, device="cpu", progress=False, out=out,
           explainers=EXPLAINERS, metrics=["saliency_kae"], keep_maps=True)  # fmt: skip
    return out


@pytest.fixture
def annotating(request, tmp_path):
    """Return an annotation study of four images with two people per image, or with the settings STUDY of a module."""
    settings = {"count": 4, "masks": 0} | getattr(request.module, "STUDY", {})
    return study_of(tmp_path, dataset(settings.pop("count"), masks=settings.pop("masks")), **settings)


@pytest.fixture
def client(annotating):
    return client_of(create_app(annotating))


@pytest.fixture
def key(client):
    return joined(client)


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def same_pseudonyms(monkeypatch):
    """Fix the random keys, because orders depend on pseudonyms, which depend on the keys."""
    numbers = count()
    monkeypatch.setattr("saliency_bench.studies.study._pseudonym", lambda *_: f"p-{next(numbers):06d}")


@pytest.fixture(scope="session")
def postgres():
    pytest.importorskip("psycopg")
    if programs() is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with Postgres() as server:
        yield server


@pytest.fixture
def database(postgres, request):
    return postgres.create(f"test_{abs(hash(request.node.nodeid)):x}")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    return tmp_path / "study.db" if request.param == "sqlite" else request.getfixturevalue("database")


@pytest.fixture
def store(place):
    store = Store(place)
    yield store
    store.close()
