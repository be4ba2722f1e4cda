"""Tests of writing files: synchronised before a rename, devices never replaced, and clear errors on full disks."""

import errno
import os
import re
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import refusal, said
from refusals import refused
from test_reporting import make_run

import saliency_bench as sb
from saliency_bench.compute.training import train
from saliency_bench.data.building import build
from saliency_bench.push_scripts.demo import small_resnet
from saliency_bench.utils import storage
from saliency_bench.utils.files import new_array, write_text, write_with
from saliency_bench.utils.storage import storage_error

RUN = {"explainers": ["random", "centre"], "metrics": ["saliency_miou"], "device": "cpu", "progress": False}


@pytest.fixture
def calls(monkeypatch):
    """Record synchronisations as ("sync", path) and renames as ("name", path), in order."""
    made: list[tuple[str, Path]] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        made.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def named(one, other):
        made.append(("name", Path(other)))
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    return made


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_file_is_synced_before_and_folder_after_rename(calls, tmp_path):
    path = tmp_path / "new" / "deep" / "file.txt"
    write_text(path, "text")
    kinds = [kind for kind, _ in calls]
    at = kinds.index("name")
    assert calls[at - 1][0] == "sync"
    assert calls[at - 1][1].name.startswith(".file.txt.")
    assert (calls[at], calls[at + 1]) == (("name", path), ("sync", path.parent))
    # New folders are renamed, too.
    assert {("sync", tmp_path), ("sync", tmp_path / "new")} <= set(calls[: at - 1])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_dataset_and_checkpoint_are_synced_before_rename(calls, tmp_path):
    folder = build("shapes-xai", tmp_path / "shapes", size=32, count=40, progress=False)
    synced = {path.name for kind, path in calls if kind == "sync"}
    assert {path.name for path in folder.rglob("*") if path.is_file()} <= synced
    calls.clear()
    out = train(dataset=str(folder), model=small_resnet(), out=tmp_path / "tiny", epochs=1, size=32, limit=8,
                device="cpu", progress=False)  # fmt: skip
    at = calls.index(("name", out))
    assert {path.name for path in out.iterdir()} <= {path.name for kind, path in calls[:at] if kind == "sync"}
    assert ("sync", tmp_path) in calls[at:]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EIO])
def test_only_unsupported_sync_errors_are_ignored(number, tmp_path, monkeypatch):
    def fails(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    if number == errno.EIO:
        refused(r"cannot write .*file\.txt: Input/output error", write_text, tmp_path / "file.txt", "text")
        assert list(tmp_path.iterdir()) == []
    else:
        write_text(tmp_path / "file.txt", "text")
        assert (tmp_path / "file.txt").read_text() == "text"


def odd(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except OSError:
            pytest.skip("no device can be made here")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"), samples=12)


@pytest.mark.parametrize(("kind", "linked"), [("pipe", False), ("socket", False), ("device", False), ("device", True)])
def test_report_does_not_replace_special_files(kind, linked, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path("odd")
    odd(kind, path)
    before = path.stat()
    if linked:
        Path("link").symlink_to(path)
        path = Path("link")
    monkeypatch.setattr("saliency_bench.read.finished_run.read_run", pytest.fail)  # refused before anything is read
    assert f"{path} is not a regular file" in refusal(capsys, ["report", run, "--out", path])
    assert path.is_symlink() == linked
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)


def test_planted_symlink_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".page.html.{os.getpid()}.tmp").symlink_to(tmp_path / "mine")
    write_text(tmp_path / "page.html", "page")
    assert [(tmp_path / name).read_text() for name in ("mine", "page.html")] == ["mine", "page"]


@pytest.mark.slow
def test_run_does_not_replace_pipes(shapes, resnet, tmp_path):
    (tmp_path / "run").mkdir()
    settings = RUN | {"dataset": str(shapes), "model": str(resnet), "out": tmp_path / "run", "limit": 4}
    sb.run(**settings)
    for name in ("summary.json", "report.html", "records.parquet"):
        (tmp_path / "run" / name).unlink()
        os.mkfifo(tmp_path / "run" / name)
        refused(f"{name} is not a regular file", sb.run, **settings)
        (tmp_path / "run" / name).unlink()


# Full disks


@pytest.fixture
def small_disk(tmp_path):
    """Return small_disk(kilobytes), which mounts a small file system and returns its folder."""
    mounted = []

    def mount(kilobytes):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", folder], capture_output=True)
        if done.returncode:
            pytest.skip("no file system can be mounted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder])


def without_temporaries(folder):
    return [path for path in folder.rglob("*") if ".tmp" in path.name]


@pytest.mark.slow
def test_run_resumes_after_full_disk(shapes, resnet, small_disk, tmp_path):
    disk = small_disk(100)
    settings = RUN | {"dataset": str(shapes), "model": str(resnet), "out": disk / "run", "batch_size": 1, "limit": 40}
    refused(r"cannot write .*disk0/run/.*No space left on device; free some space", sb.run, **settings)
    assert without_temporaries(disk) == []
    done = len(list(disk.rglob("*.parquet")))
    assert done > 0
    subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
    folders = sb.run(**settings).folder, sb.run(**settings | {"out": tmp_path / "fresh"}).folder
    for name in ("records.parquet", "predictions.parquet"):
        finished, fresh = ((folder / name).read_bytes() for folder in folders)
        assert finished == fresh


def test_build_reports_full_disk(small_disk, capsys):
    disk = small_disk(200)
    line = ["build", "shapes-xai", "--size", "64", "--count", "2000", "--out", str(disk / "shapes")]
    shown = said(capsys, line, 2)
    assert "No space left on device; free some space or choose a different --out" in shown
    assert str(disk) in shown
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("kilobytes", [40, 2200])  # too small for the state of the first epoch, and for the checkpoint
def test_training_reports_full_disk(kilobytes, shapes, small_disk, capsys):
    disk = small_disk(kilobytes)
    refused("cannot write .*No space left on device; free some space", train, dataset=str(shapes),
            model=small_resnet(), out=disk / "resnet", epochs=1, size=32, limit=16, device="cpu",
            progress=False)  # fmt: skip
    assert not (disk / "resnet").exists()
    assert without_temporaries(disk) == []


def test_report_command_names_full_disk(run, small_disk, capsys):
    disk = small_disk(16)
    shown = said(capsys, ["report", str(run), "--out", str(disk / "page.html")], 2)
    assert f"cannot write {disk / 'page.html'}: No space left on device; free some" in shown
    assert list(disk.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("variable", ["HF_DATASETS_CACHE", "SALIENCY_BENCH_CACHE"])
@pytest.mark.parametrize("kind", ["full", "a file", "read-only"])
def test_unwritable_cache_is_reported(kind, variable, shapes, resnet, small_disk, tmp_path):
    folder = tmp_path / "cache"
    if kind == "a file":
        folder.write_text("")
        folder = folder / "deep"
    else:
        folder = small_disk(60 if kind == "full" else 4000)
        if kind == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    dataset = shapes if variable == "HF_DATASETS_CACHE" else "shapes-xai"
    words = ["--dataset", str(dataset), "--model", str(resnet), "--explainers", "random", "--limit", "4",
             "--metrics", "saliency_miou", "--device", "cpu", "--out", str(tmp_path / "run")]  # fmt: skip
    environment = os.environ | {variable: str(folder), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "saliency_bench", "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    why = {"full": "No space left on device", "a file": "Not a directory", "read-only": "Read-only file system"}[kind]
    does_without = variable == "HF_DATASETS_CACHE" and kind != "full"  # a folder of data is read without a cache
    assert done.returncode == (0 if does_without else 2), done.stderr
    lines = done.stderr.strip().splitlines()
    line = next(line for line in (lines if does_without else lines[-1:]) if "cache folder" in line)
    assert f"cannot write to the cache folder {folder}: {why}" in line
    assert f"or set {variable} to a different folder" in line
    assert (tmp_path / "run").exists() == does_without


@pytest.mark.parametrize(("error", "words"), [
    (OSError(errno.EDQUOT, "x", "/data/file"), "cannot write /data/file: Disk quota exceeded; free some space"),
    (OSError(errno.EROFS, "x", "/data/file"), "cannot write /data/file: Read-only file system; make it writable"),
    (OSError("Not enough disk space. Needed: 3 GB"), "Not enough disk space. Needed: 3 GB; free some space"),
    (RuntimeError("I/O error: No space left on device (os error 28)"), "No space left on device"),
    (sqlite3.OperationalError("database or disk is full"), "cannot write to the disk: database or disk is full; free"),
    (OSError(errno.EACCES, "x", "CACHE/file"), "to the cache folder .*: Permission denied; make it writable"),
    (OSError(errno.EACCES, "x", "/data/file"), None),  # may be an error of reading
    (OSError(errno.ENOENT, "x", "CACHE/file"), None),  # a cache that exists and is writable
    (ValueError("x"), None),
])  # fmt: skip
def test_storage_errors_are_recognised(error, words, tmp_path, monkeypatch):
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path))
    if str(getattr(error, "filename", None)).startswith("CACHE"):
        error.filename = str(tmp_path / "file")
    outer = KeyError("outer")
    outer.__cause__ = error
    found = storage_error(outer)
    assert (found is None) == (words is None)
    assert words is None or re.search(words, str(found))


def test_full_cache_folder_is_identified(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "not there yet"))
    real = storage.shutil.disk_usage
    monkeypatch.setattr(storage.shutil, "disk_usage",
                        lambda path: real(path)._replace(free=0 if Path(path) == tmp_path else 2**30))  # fmt: skip
    words = f"the cache folder {tmp_path / 'not there yet'}: No space left on device; .* set HF_DATASETS_CACHE"
    assert re.search(words, str(storage_error(OSError(errno.ENOSPC, "x"))))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve room")
def test_mapped_array_reserves_disk_space_first(tmp_path, monkeypatch):
    array = new_array(tmp_path / "array.npy", "uint8", (1000, 1000))
    assert array.sum() == 0
    assert 512 * (tmp_path / "array.npy").stat().st_blocks >= 10**6

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused(r"cannot write .*array\.npy: No space left on device; free some space", write_with,
            tmp_path / "array.npy", lambda path: new_array(path, "uint8", (1000, 1000)))  # fmt: skip
