"""The Hub of the tests behaves as the public one does towards unmodified clients."""

import hashlib
import time
import urllib.error
import urllib.request

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from local_hub import FOUNDER, READER, VISITOR, LocalHub

REPO = "saliency-bench/things"


@pytest.fixture
def api(hub, monkeypatch):
    """The owner's client, in this process, with a repository that holds one small and one large file."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    api = hub.api()
    api.create_repo(REPO, repo_type="dataset")
    add(api, {"README.md": b"---\nlicense: mit\n---\n# x\n", "data/a.parquet": b"first" * 1000})
    return api


def add(api, files, **options):
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit(REPO, operations, commit_message="more", repo_type="dataset", **options)


def read(api, path, revision="main"):
    place = api.hf_hub_download(REPO, path, repo_type="dataset", revision=revision, cache_dir=None, local_dir=None)
    with open(place, "rb") as file:
        return file.read()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def test_files_revisions_and_history(hub, api):
    first = api.dataset_info(REPO)
    assert first.card_data["license"] == "mit"
    assert {each.rfilename for each in first.siblings} == {".gitattributes", "README.md", "data/a.parquet"}
    done = add(api, {"data/a.parquet": b"second" * 1000})
    assert read(api, "data/a.parquet") == b"second" * 1000
    assert read(api, "data/a.parquet", first.sha) == b"first" * 1000
    tree = {each.path: each for each in api.list_repo_tree(REPO, repo_type="dataset", recursive=True)}
    assert tree["data/a.parquet"].lfs.sha256 == hashlib.sha256(b"second" * 1000).hexdigest()
    assert tree["README.md"].lfs is None
    assert [each.path for each in api.list_repo_tree(REPO, "data", repo_type="dataset")] == ["data/a.parquet"]
    assert api.get_paths_info(REPO, ["README.md", "data", "none"], repo_type="dataset")[0].path == "data"
    commits = api.list_repo_commits(REPO, repo_type="dataset")
    assert [each.commit_id for each in commits][:2] == [done.oid, first.sha]
    api.create_tag(REPO, tag="v1", revision=first.sha, repo_type="dataset")
    assert read(api, "data/a.parquet", "v1") == b"first" * 1000
    api.create_commit(REPO, [CommitOperationDelete("data/")], commit_message="less", repo_type="dataset")
    assert not api.file_exists(REPO, "data/a.parquet", repo_type="dataset")

    with LocalHub(hub.root) as again:  # all of it is on disk
        assert again.files("datasets", REPO, first.sha) == hub.files("datasets", REPO, first.sha)
        assert len(again.api().list_repo_commits(REPO, repo_type="dataset")) == 4


def test_an_unchanged_file_makes_no_commit_and_no_upload(hub, api):
    before, requests = api.dataset_info(REPO).sha, len(hub.asked)
    assert add(api, {"data/a.parquet": b"first" * 1000}).oid == before
    assert not [each for each in hub.asked[requests:] if each.method == "PUT" or "/commit/" in each.path]


@pytest.mark.slow
def test_pull_requests(hub, api):
    guest = hub.api(VISITOR)
    first = add(guest, {"guest.txt": b"hello"}, create_pr=True)
    assert (first.pr_num, first.pr_revision) == (1, "refs/pr/1")
    second = add(guest, {"README.md": b"---\nlicense: mit\n---\nguest"}, create_pr=True)
    assert read(guest, "guest.txt", "refs/pr/1") == b"hello"
    with pytest.raises(EntryNotFoundError):
        read(guest, "guest.txt")
    add(guest, {"guest2.txt": b"more"}, revision="refs/pr/1")  # its author may add to it, nobody may to main
    with pytest.raises(HfHubHTTPError, match="403"):
        add(guest, {"guest2.txt": b"more"})
    with pytest.raises(HfHubHTTPError, match="403"):
        guest.merge_pull_request(REPO, 1, repo_type="dataset")
    listed = list(api.get_repo_discussions(REPO, repo_type="dataset", discussion_type="pull_request"))
    assert [(each.num, each.author, each.status) for each in listed] == [(2, "visitor", "open"), (1, "visitor", "open")]
    refs = api.list_repo_refs(REPO, repo_type="dataset", include_pull_requests=True)
    assert [each.ref for each in refs.pull_requests] == ["refs/pr/1", "refs/pr/2"]
    api.merge_pull_request(REPO, 1, repo_type="dataset")
    assert read(api, "guest2.txt") == b"more"
    details = api.get_discussion_details(REPO, 1, repo_type="dataset")
    assert details.status == "merged"
    assert details.merge_commit_oid == api.dataset_info(REPO).sha
    add(api, {"README.md": b"---\nlicense: mit\n---\nowner"})
    assert api.get_discussion_details(REPO, second.pr_num, repo_type="dataset").conflicting_files == ["README.md"]
    with pytest.raises(HfHubHTTPError, match="409"):
        api.merge_pull_request(REPO, 2, repo_type="dataset")
    api.comment_discussion(REPO, 2, "please rebase", repo_type="dataset")
    api.change_discussion_status(REPO, 2, "closed", repo_type="dataset")
    assert [each.num for each in api.get_repo_discussions(REPO, repo_type="dataset", discussion_status="open")] == []


def test_who_may_what(hub, api):
    assert api.whoami()["orgs"][0]["name"] == "saliency-bench"
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(REPO, repo_type="dataset")
    for user, code in ((None, "401"), (VISITOR, "403"), (READER, "403")):
        with pytest.raises(HfHubHTTPError, match=code):
            hub.api(user).create_repo("saliency-bench/other")
    add(hub.api(VISITOR), {"x": b"x"}, create_pr=True)
    with pytest.raises(HfHubHTTPError, match="403"):
        add(hub.api(READER), {"x": b"x"})
    api.update_repo_settings(REPO, private=True, repo_type="dataset")
    for user, code in ((None, "401"), (VISITOR, "404")):
        with pytest.raises(RepositoryNotFoundError, match=code):
            hub.api(user).dataset_info(REPO)
    assert [each.id for each in api.list_datasets(author="saliency-bench")] == [REPO]
    assert list(hub.api(VISITOR).list_datasets(author="saliency-bench")) == []
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(REPO, revision="0" * 40)
    with pytest.raises(HfHubHTTPError, match="412"):
        add(api, {"y": b"y"}, parent_commit="0" * 40)


def test_it_says_what_it_serves_and_answers_501_to_the_rest(hub):
    assert "GET /api/whoami-v2" in hub.endpoints()
    for path in ("/api/papers", "/api/collections/a/b", "/nothing/at/all", "/api/buckets/a/b"):
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(hub.url + path)


def fetch(hub, path="data/a.parquet", **headers):
    request = urllib.request.Request(f"{hub.url}/datasets/{REPO}/resolve/main/{path}", headers=headers)
    return urllib.request.urlopen(request, timeout=5)


def test_ranges(hub, api):
    content = b"first" * 1000
    for asked, part in (("bytes=0-9", content[:10]), ("bytes=4990-", content[4990:]), ("bytes=-3", content[-3:])):
        answer = fetch(hub, Range=asked)
        assert (answer.status, answer.read()) == (206, part)
    assert fetch(hub, Range="bytes=0-9").headers["Content-Range"] == "bytes 0-9/5000"
    with pytest.raises(urllib.error.HTTPError, match="416"):
        fetch(hub, Range="bytes=5000-")


@pytest.mark.slow
def test_faults(hub, api):
    content = b"first" * 1000
    hub.fault("GET .*parquet", drop_after=1234)
    with pytest.raises(Exception, match="IncompleteRead") as error:
        fetch(hub).read()
    assert error.value.partial == content[:1234]
    hub.fault("GET .*parquet", status=429, headers={"Retry-After": "7"})
    with pytest.raises(urllib.error.HTTPError, match="429") as refusal:
        fetch(hub)
    assert refusal.value.headers["Retry-After"] == "7"
    hub.fault("GET .*parquet", lie=100)
    assert int(fetch(hub).headers["Content-Length"]) == 5100
    hub.fault("GET .*parquet", lie=-100)
    assert fetch(hub).read() == content[:-100]
    hub.fault("GET .*parquet", delay=0.3)
    start = time.time()
    assert fetch(hub).read() == content
    assert time.time() - start > 0.3
    hub.fault("GET .*parquet", body=b"another")
    assert fetch(hub).read() == b"another"
    assert fetch(hub).read() == content  # each fault was ordered once
    before = api.dataset_info(REPO).sha
    hub.change_in_place("datasets", REPO, before, "data/a.parquet", b"changed")
    assert (fetch(hub).read(), api.dataset_info(REPO).sha) == (b"changed", before)
    hub.fault("PUT", drop_after=10)
    hub.fault("POST .*/commit/", lost=True)
    with pytest.raises(Exception, match=r"(?i)disconnect|reset|closed|without|eof"):
        add(api, {"data/b.parquet": b"b" * 100_000})  # the client tries the file again, the commit it does not
    assert hub.files("datasets", REPO)["data/b.parquet"] == b"b" * 100_000


@pytest.mark.slow
def test_unmodified_clients_in_a_process_of_their_own(hub, api):
    code = f"""
import os, datasets
from huggingface_hub import hf_hub_download
datasets.Dataset.from_dict({{"x": [1, 2, 3]}}).push_to_hub("saliency-bench/numbers", split="test")
rows = datasets.load_dataset("saliency-bench/numbers", split="test")
print(rows["x"][:], hf_hub_download({REPO!r}, "data/a.parquet", repo_type="dataset"))
streamed = datasets.load_dataset("saliency-bench/numbers", split="test", streaming=True)
print([row["x"] for row in streamed], flush=True)
os._exit(0)  # threads of pyarrow may abort a process that has streamed as it ends
"""
    done = hub.python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[1, 2, 3]") == 2
    assert str(hub.root / "home") in done.stdout
    assert FOUNDER.token not in done.stdout + done.stderr
