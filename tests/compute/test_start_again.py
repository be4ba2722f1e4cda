"""A start with nothing to compute writes nothing that is there; what was changed or lost is written again."""

import shutil

import pytest

import saliency_bench as sb
from saliency_bench.compute import finish

SETTINGS = {"explainers": ["random", "gradient"], "metrics": ["saliency_miou"], "batch_size": 4, "limit": 12}
WRITTEN = ("records.parquet", "predictions.parquet", "summary.json", "timings.json", "examples.npz", "report.html")


def go(out, shapes, resnet, **changes):
    settings = SETTINGS | changes
    return sb.run(dataset=str(shapes), model=str(resnet), device="cpu", progress=False, out=out, **settings)


@pytest.fixture(scope="module")
def finished(shapes, resnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    go(out, shapes, resnet)
    return out


@pytest.fixture
def out(finished, tmp_path):
    """A copy under the same name: the command names the folder, and is part of the summary."""
    kept = tmp_path / "kept"
    shutil.copytree(finished, kept)
    yield finished
    shutil.rmtree(finished)
    shutil.copytree(kept, finished)


def state(out):
    return {name: ((out / name).stat().st_mtime_ns, (out / name).read_bytes()) for name in WRITTEN}


def test_nothing_new_writes_nothing(out, shapes, resnet, monkeypatch):
    before = state(out)
    first = go(out, shapes, resnet).summary  # of a run that was made by the same code, in this process or another
    monkeypatch.setattr(finish, "summarise", lambda _: pytest.fail("the summary was made again"))
    again = go(out, shapes, resnet)
    assert (again.summary, state(out)) == (first, before)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", WRITTEN[2:])
@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"other")], ids=["", "b"])
def test_what_is_gone_or_changed_is_written_again(out, shapes, resnet, name, spoil):
    before = state(out)
    spoil(out / name)
    go(out, shapes, resnet)
    for other in set(WRITTEN) - {"timings.json", "report.html"}:  # which say how long the last start took
        assert (out / other).read_bytes() == before[other][1]
    assert (out / name).read_bytes() not in (b"", b"other")


@pytest.mark.sample(1)
@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}'])
def test_a_note_that_cannot_be_read_is_no_note(out, shapes, resnet, content):
    (out / finish.WRITTEN).write_text(content)
    before = state(out)["summary.json"]
    go(out, shapes, resnet)
    assert state(out)["summary.json"][0] > before[0]


@pytest.mark.slow
def test_another_question_or_other_code_is_written(out, shapes, resnet, tmp_path, monkeypatch):
    before = state(out)["report.html"]
    other = go(out, shapes, resnet, limit=8).summary
    assert other["dataset"]["used"] < go(out, shapes, resnet).summary["dataset"]["used"]
    assert "--limit 8" in other["command"]
    before = state(out)["report.html"]
    (tmp_path / "saliency_bench").mkdir()
    (tmp_path / "saliency_bench" / "words.py").write_text("changed = True")
    monkeypatch.setattr(finish, "PACKAGE", tmp_path / "saliency_bench")
    go(out, shapes, resnet)
    assert state(out)["report.html"][0] > before[0]
