"""Tests of datasets on the Hub: runs record the loaded commit, and files of other repositories are not opened."""

import io
import json
import time

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.data.build_report import REPORT
from saliency_bench.data.loading import find, fingerprint
from saliency_bench.hub.upload import publish
from saliency_bench.publishing.datasets import dataset_publication

REPO, ALIAS = "founder/things", r"the alias \*a"
CARD = b"---\nconfigs:\n- config_name: default\n  data_files: %s\n---\n"
FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})


def png(colour="red"):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "png")
    return buffer.getvalue()


def parquet(*images):
    rows, buffer = [{"image": image, "label": 0} for image in images], io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=FEATURES.arrow_schema), buffer)
    return buffer.getvalue()


def same_text():
    """Return a file of 600 strings of 1 MB each. The file stores only one of them."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"image_id": ["x" * 10**6] * 600}), buffer)
    return buffer.getvalue()


def put(hub, repo=REPO, **files):
    """Create a commit with these files; __ stands for / in a path, and _dot_ for a dot."""
    api = hub.api()
    api.create_repo(repo, repo_type="dataset", exist_ok=True)
    operations = [huggingface_hub.CommitOperationAdd(path.replace("__", "/").replace("_dot_", "."), content)
                  for path, content in files.items()]  # fmt: skip
    return api.create_commit(repo, operations, commit_message="x", repo_type="dataset").oid


def filled(colour):
    return {"data__test_dot_parquet": parquet({"bytes": png(colour), "path": None})}


@pytest.fixture
def away(monkeypatch):
    """Return a function that disconnects the network."""

    def leave(by="switch"):
        if by == "switch":
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
            monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        else:
            for name in ("huggingface_hub.constants.ENDPOINT", "datasets.config.HF_ENDPOINT"):
                monkeypatch.setattr(name, "http://127.0.0.1:9")
            address = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)

    return leave


@pytest.mark.slow
def test_each_revision_loads_its_own_commit(here, away):
    first, second = put(here, **filled("red")), put(here, **filled("blue"))
    here.api().create_tag(REPO, tag="v1", revision=first, repo_type="dataset")
    for name, revision, commit in (
        (REPO, None, second), (REPO, "main", second), (REPO, first, first), (f"{REPO}@{first}", None, first),
        (f"hub:{REPO}@v1", None, first), (f"{REPO}@{second}", None, second),
    ):  # fmt: skip
        found = find(name, revision=revision)
        assert (found.name, found.repo, found.revision, found.folder) == (REPO, REPO, commit, None)
        colour = (255, 0, 0) if commit == first else (0, 0, 255)
        assert found.load("test")[0]["image"].getpixel((0, 0)) == colour
    refused("has no revision none", find, REPO, revision="none")
    third = put(here, **filled("lime"))  # never loaded on this machine
    asked = len(here.asked)
    for by in ("switch", "network"):
        away(by)
        start = time.perf_counter()
        assert find(REPO).revision == second  # the commit of main when it was last loaded
        assert sb.load_dataset(REPO)[0]["image"].getpixel((0, 0)) == (0, 0, 255)
        assert sb.load_dataset(f"{REPO}@{first}")[0]["image"].getpixel((0, 0)) == (255, 0, 0)
        words = rf"cannot be reached.* {REPO} at {third} is not in the cache"
        assert "did you mean" not in refused(words, sb.load_dataset, REPO, revision=third)
        refused(r"cannot be reached.*founder/never is not in the cache", sb.load_dataset, "founder/never")
        assert time.perf_counter() - start < 5
    assert len(here.asked) == asked


def test_only_split_is_used_online_and_offline(here, away, capsys):
    put(here, data__train_dot_parquet=parquet({"bytes": png(), "path": None}))
    for leave in (None, away):
        if leave:
            leave()
        assert str(sb.load_dataset(REPO).split) == "train"
        refused(r"'dev'; known: train \(--split\)", sb.load_dataset, REPO, "dev")
    assert capsys.readouterr().err.count(f"{REPO} has no split test, so its only split, train, is used") == 1


@pytest.mark.slow
def test_incomplete_cached_copy_is_rejected(here, away, monkeypatch):
    commit = put(here, **filled("red"))
    sb.load_dataset(REPO)
    later = put(here, **filled("blue"))
    here.fault("GET .*parquet", status=403, times=99)
    refused(REPO, sb.load_dataset, REPO)
    away()
    refused(f"the cache does not contain all files of the commit {later}", sb.load_dataset, REPO)
    assert len(sb.load_dataset(REPO, revision=commit)) == 1


@pytest.mark.slow
def test_broken_connection_loads_no_older_commit(here):
    """Test a broken connection, for which `datasets` silently falls back to the latest commit in its cache."""
    put(here, **filled("red"))
    sb.load_dataset(REPO)
    put(here, **filled("blue"))
    here.fault("GET .*/(tree|paths-info)/|POST .*/paths-info/", status=400, times=99)
    refused(REPO, sb.load_dataset, REPO)


@pytest.mark.parametrize("what", ["gated", "private", "gone"])
def test_unreadable_repository_is_rejected(here, what):
    put(here, **filled("red"))
    if what == "gated":
        for status in (401, 403):
            here.heal()
            here.fault("(GET|HEAD) .*resolve/", status=status, headers={"X-Error-Code": "GatedRepo"}, times=99)
            refused(REPO, sb.load_dataset, REPO)
        return
    if what == "private":
        here.api().update_repo_settings(REPO, private=True, repo_type="dataset")
        here.api().create_repo("founder/net", private=True)
        refused("'founder/net'", sb.load_classifier, "founder/net")
    else:
        here.api().delete_repo(REPO, repo_type="dataset")
    caught = refused(rf"no dataset {REPO} \(or it is private\)", sb.load_dataset, REPO)
    assert "did you mean" not in caught


@pytest.mark.slow
def test_rows_referring_to_other_files_are_rejected(here, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(png())
    for aim in (str(secret), "/etc/passwd", "../../secret.png", "https://example.org/x.png", "hf://datasets/x/y/z.png"):
        put(here, data__test_dot_parquet=parquet({"bytes": png(), "path": "x"}, {"bytes": None, "path": aim}))
        refused(f"{REPO}: a row refers to the file .* are not opened", sb.load_dataset, REPO)


def test_image_folder_on_the_hub_is_loaded(here):
    put(here, test__a__1_dot_png=png("red"), test__b__2_dot_png=png("blue"))
    rows = sb.load_dataset(REPO)
    assert [row["label"] for row in rows] == [0, 1]
    assert rows[1]["image"].getpixel((0, 0)) == (0, 0, 255)
    assert fingerprint(rows)


HOSTILE = [
    ({"other0_dot_py": b"open('ran', 'w')"} | filled("red"), "downloaded code is never executed"),
    ({"things_dot_py": b"open('ran', 'w')"}, r"contains things\.py"),
    ({"test_dot_zip": b"PK"}, r"contains test\.zip"), ({"test_dot_tar": b"x"}, r"contains test\.tar"),
    ({"test_dot_tar": b"x", "a_dot_txt": b"x"}, "other4"), ({"test_dot_pkl": b"x"}, r"contains test\.pkl"),
    ({"README_dot_md": CARD % b"/etc/hosts.txt"}, "other6"),
    ({"README_dot_md": CARD % b"../../founder/other/x.csv"}, "other7"),
    ({"README_dot_md": b"---\na: &a x\nb: [" + b", ".join([b"*a"] * 60) + b"]\n---\n"} | filled("red"), ALIAS),
    ({"README_dot_md": b"---\nconfigs: 3\ndataset_info: []\n---\n"}, "other9"),
    ({"data__test_dot_parquet": b"PAR1 no more"}, "other10"),
    ({"data__test_dot_parquet": same_text()}, "its strings take up 600,000,000 bytes"),
    ({"test_dot_jsonl": b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"}, "that read it crashed"), ({}, "other13"),
]  # fmt: skip


@pytest.mark.parametrize("start", [0, pytest.param(7, marks=pytest.mark.slow)])
def test_hostile_repository_is_rejected(here, tmp_path, monkeypatch, start):
    monkeypatch.chdir(tmp_path)
    for number, (files, match) in enumerate(HOSTILE[start : start + 7], start):
        put(here, repo := f"founder/other{number}", **files)
        assert len(refused(match, sb.load_dataset, repo)) < 800
    assert not (tmp_path / "ran").exists()


def test_card_naming_local_files_is_rejected(here, tmp_path):
    (tmp_path / "secret.csv").write_text("image,label\nx,0\n")
    put(here, README_dot_md=CARD % f"{tmp_path}/secret.csv".encode(), **filled("red"))
    refused("don't belong to founder/things", sb.load_dataset, REPO)


@pytest.mark.slow
def test_wrong_build_report_is_rejected_and_optional(here, pets, tmp_path):
    publish(dataset_publication(pets, "founder", tmp_path, "pets"), api=here.api())
    found = find("founder/pets")
    assert (found.name, found.repo) == ("founder/pets", "founder/pets")  # regardless of its report
    assert fingerprint(found.load("test")) == json.loads((pets / REPORT).read_text())["splits"]["test"]["fingerprint"]
    publish(dataset_publication(pets, "saliency-bench", tmp_path), api=here.api())
    assert find("pet-xai").name == find("hub:pet-xai").name == "pet-xai"
    lie = json.loads((pets / REPORT).read_text())
    lie["splits"]["test"]["fingerprint"] = "0" * 32
    put(here, "founder/pets", build_report_dot_json=json.dumps(lie).encode())
    refused(r"the split test of founder/pets does not match its build_report.json", sb.load_dataset, "founder/pets")
    put(here, "founder/pets", build_report_dot_json=b"[" * 100_000)
    refused(r"build_report\.json", sb.load_dataset, "founder/pets")
    put(here, **filled("red"))
    assert len(sb.load_dataset(REPO)) == 1
