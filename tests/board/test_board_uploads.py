"""Tests of runs that users upload to the leaderboard: unpacking, refusals and pull requests."""

import json
import shutil
import struct
import zipfile

import numpy as np
import pytest
from local_hub import FOUNDER, VISITOR
from refusals import refused
from test_submitting import other_run

import saliency_bench as sb
from saliency_bench.board.known import Known, known_dataset
from saliency_bench.board.published_maps import PUBLISHED, write_maps
from saliency_bench.board.review import review
from saliency_bench.board.submission import of_upload
from saliency_bench.board.view import received
from saliency_bench.board.view.board_page import preview
from saliency_bench.board.view.received import WANTED, Limits, proposal, unfold

BOARD = "saliency-bench/results"
CARD = b"---\nlicense: cc-by-4.0\n---\n# Board"


def packed(path, files, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def files_of(run, place="first/"):
    return {f"{place}{path.name}": path.read_bytes() for path in run.iterdir() if path.is_file()}


def maps_of(run, count=5):
    """Return {path in an archive: content} of the maps of a run."""
    write_maps(run / PUBLISHED, "random", ((f"image {number}", np.ones((8, 8), np.float32)) for number in range(count)))
    return {f"first/{PUBLISHED}/{path.name}": path.read_bytes() for path in (run / PUBLISHED).iterdir()}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "unfolded").mkdir()
    return tmp_path / "unfolded"


@pytest.mark.parametrize("place", ["", "first/"])
def test_upload_writes_only_the_files_of_a_run(run, tmp_path, folder, place):
    more = {"first/report.html": b"<script>", "../../evil.json": b"{}", "/etc/summary.json.txt": b"",
            "a/b/run.json": b""} | maps_of(tmp_path)  # fmt: skip
    unfold(packed(tmp_path / "run.zip", files_of(run, place) | more), folder)
    assert {path.name for path in folder.iterdir()} == set(WANTED)
    assert all((folder / name).read_bytes() == (run / name).read_bytes() for name in WANTED)
    assert {path.name for path in tmp_path.iterdir()} == {"unfolded", "run.zip", PUBLISHED}


def without(run, name):
    return {path: content for path, content in files_of(run).items() if not path.endswith(name)}


@pytest.mark.parametrize(("make", "words"), [
    (lambda run: without(run, "summary.json"), "contains no summary.json"),
    (lambda run: without(run, "records.parquet"), "contains no records.parquet"),
    (lambda run: files_of(run) | files_of(run, "second/"), "contains several runs"),
    (lambda run: files_of(run) | {"first/summary.json": b"0" * 8_000_001}, "unpacks to more than 8,000,000"),
    (lambda run: {f"{number}": b"" for number in range(20_001)}, "contains no summary.json"),
    (lambda run: files_of(run, "a/b/"), "contains no summary.json"),
])  # fmt: skip
def test_zip_without_exactly_one_run_is_refused(run, tmp_path, folder, make, words):
    error = refused(words, unfold, packed(tmp_path / "run.zip", make(run)), folder)
    assert str(tmp_path) not in error


def test_forged_sizes_in_an_archive_are_ignored(run, tmp_path, folder):
    """Upload a summary of 20 MB. Both of its headers claim a size of 100 bytes."""
    path = packed(tmp_path / "run.zip", files_of(run) | {"first/summary.json": b"0" * 20_000_000})
    content = path.read_bytes().replace(struct.pack("<I", 20_000_000), struct.pack("<I", 100))
    path.write_bytes(content)
    refused(r"archive cannot be read|unpacks to more|summary", unfold, path, folder)
    assert all(written.stat().st_size <= max(WANTED.values()) for written in folder.iterdir())
    assert not (folder / "summary.json").exists() or (folder / "summary.json").stat().st_size <= 100


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x05\x06", b"PK\x05\x06" + bytes(18),
                                     b"PK\x06\x07" + bytes(16) + b"PK\x05\x06" + bytes(18)])  # fmt: skip
def test_other_files_than_zip_are_refused(tmp_path, folder, content):
    (tmp_path / "run.zip").write_bytes(content)
    refused(r"not a zip archive|contains no summary.json", unfold, tmp_path / "run.zip", folder)


def test_large_archive_is_refused(run, tmp_path, folder, monkeypatch):
    monkeypatch.setattr(received, "MOST_PACKED", 1000)
    refused("more than the limit of 1,000", unfold, packed(tmp_path / "run.zip", files_of(run)), folder)


def test_encrypted_archive_is_refused(run, tmp_path, folder):
    path = packed(tmp_path / "run.zip", files_of(run))
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + place] |= 1
            at = content.find(mark, at + 4)
    path.write_bytes(content)
    refused("is encrypted", unfold, path, folder)


def test_damaged_records_are_refused_in_one_line(run, tmp_path, folder):
    unfold(packed(tmp_path / "run.zip", files_of(run) | {"first/records.parquet": b"PAR1" * 9}), folder)
    refused(r"records\.parquet is damaged", of_upload, folder, "ada")


@pytest.fixture
def board(here):
    """Create a results repository with its card; the account logged in on this machine does not own the repository."""
    here.api().create_repo(BOARD, repo_type="dataset")
    here.api().upload_file(path_or_fileobj=CARD, path_in_repo="README.md", repo_id=BOARD, repo_type="dataset")
    return here


@pytest.mark.slow
def test_upload_becomes_a_pull_request_that_passes_review(board, run, tmp_path, folder, shapes, monkeypatch):
    unfold(packed(tmp_path / "run.zip", files_of(run) | maps_of(tmp_path)), folder, with_maps=True)
    api = board.api(VISITOR)
    assert not any(path.endswith(".npz") for path in proposal(folder, BOARD, api, Known()).files)
    proposed = proposal(folder, BOARD, api, Known([known_dataset(str(shapes))]), "<b>a note</b>", with_maps=True)
    shown = preview(proposed=proposed)
    assert "2 new rows by visitor" in shown
    assert "<b>a note" not in shown
    assert VISITOR.token not in shown
    address = proposed.publish()
    assert address == f"{board.url}/datasets/{BOARD}/discussions/1"
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    verdict = review(BOARD, 1)
    assert (verdict.fine, verdict.author) == (True, "visitor")
    sent = board.api().list_repo_files(BOARD, repo_type="dataset", revision="refs/pr/1")
    assert sum(path.endswith("/maps-00000.npz") for path in sent) == 1
    again = proposal(folder, BOARD, api, Known())
    assert (again.pending, again.nothing) == (address, True)
    Limits(pulls=2).check_pulls("visitor", BOARD, api)
    refused("visitor has opened 1 pull requests within 24 hours", Limits(pulls=1).check_pulls, "visitor", BOARD, api)
    Limits(pulls=1).check_pulls("founder", BOARD, api)


@pytest.mark.parametrize(("edit", "limits", "words"), [
    (lambda maps: {}, {}, "contains no maps"),
    (lambda maps: {name: content[:90] for name, content in maps.items()}, {}, r"^maps-00000\.npz cannot be read"),
    (lambda maps: maps, {"MOST_MAPS": 100}, "maps unpack to more than 100 bytes"),
    (lambda maps: maps, {"LARGEST_SHARD": 100}, r"maps-00000\.npz unpacks to more than 100 bytes"),
    (lambda maps: maps, {"MOST_SHARDS": 0}, "more than 0 map files"),
    (lambda maps: {f"second/{PUBLISHED}/maps-00000.npz": b""}, {}, "contains no maps"),
    (lambda maps: {f"first/{PUBLISHED}/../maps-00000.npz": b""}, {}, "contains no maps"),
])  # fmt: skip
def test_uploaded_maps_are_limited_and_checked(run, tmp_path, folder, monkeypatch, edit, limits, words):
    if limits:  # a child process would not use the changed limits
        monkeypatch.setattr(received, "bounded", lambda function, *args, **bounds: function(*args))
    for name, value in limits.items():
        monkeypatch.setattr(received, name, value)
    archive = packed(tmp_path / "run.zip", files_of(run) | edit(maps_of(tmp_path)))
    refused(words, unfold, archive, folder, with_maps=True)


def test_repeated_map_file_is_refused(run, tmp_path, folder):
    path = packed(tmp_path / "run.zip", files_of(run) | maps_of(tmp_path))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(f"first/{PUBLISHED}/maps-00000.npz", b"")
    refused("contains a map file twice", unfold, tmp_path / "run.zip", folder, with_maps=True)


def test_run_that_fails_review_is_refused(board, run, tmp_path, folder, shapes):
    api = board.api(VISITOR)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    summary = json.loads((copy / "summary.json").read_text())
    summary["cells"][0]["value"] += 0.1
    (copy / "summary.json").write_text(json.dumps(summary))
    unfold(packed(tmp_path / "run.zip", files_of(copy)), folder)
    error = refused("but the mean of the scores is", proposal, folder, BOARD, api, Known())
    assert str(tmp_path) not in error
    known = known_dataset(str(shapes))
    others = known.model_copy(update={"samples": [(f"other {one}", group) for one, group in known.samples]})
    unfold(packed(tmp_path / "run.zip", files_of(run)), folder)
    refused("is not in", proposal, folder, BOARD, api, Known([others]))


def test_preview_shows_conflicts_with_the_board(board, run, tmp_path, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    sb.submit(run)
    board.api().merge_pull_request(BOARD, 1, repo_type="dataset")
    unfold(packed(tmp_path / "run.zip", files_of(other_run(run, tmp_path, 0.05))), folder)
    proposed = proposal(folder, BOARD, board.api(VISITOR), Known())
    assert (len(proposed.new), len(proposed.known)) == (1, 1)
    assert "conflict: random by saliency_miou" in preview(proposed=proposed)


def test_board_without_card_accepts_nothing(here, run, tmp_path, folder):
    unfold(packed(tmp_path / "run.zip", files_of(run)), folder)
    here.api().create_repo(BOARD, repo_type="dataset")
    refused("is not set up yet", proposal, folder, BOARD, here.api(), Known())


def test_uploads_are_limited_per_account_and_day():
    now = [0.0]
    limits = Limits(uploads=2, clock=lambda: now[0])
    limits.count("ada")
    limits.count("ada")
    limits.count("bob")
    refused("ada has uploaded 2 runs within 24 hours", limits.count, "ada")
    now[0] = 24 * 3600 + 1.0
    limits.count("ada")
    assert set(limits._seen) == {"ada"}
