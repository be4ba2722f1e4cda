"""Tests that the Hub for tests behaves like the public Hub for unmodified clients."""

import time
import urllib.error
import urllib.request

import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from local_hub import READER, VISITOR

REPO = "saliency-bench/things"


@pytest.fixture
def api(hub, monkeypatch):
    """Return the owner's client in this process. The Hub has a repository with one small and one large file."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    api = hub.api()
    api.create_repo(REPO, repo_type="dataset")
    add(api, {"README.md": b"---\nlicense: mit\n---\n# x\n", "data/a.parquet": b"first" * 1000})
    return api


def add(api, files, **options):
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit(REPO, operations, commit_message="more", repo_type="dataset", **options)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


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
    with pytest.raises(HfHubHTTPError, match="403"):
        hub.api(VISITOR).merge_pull_request(REPO, 1, repo_type="dataset")
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
    assert fetch(hub).read() == content  # each fault occurs once
    before = api.dataset_info(REPO).sha
    hub.change_in_place("datasets", REPO, before, "data/a.parquet", b"changed")
    assert (fetch(hub).read(), api.dataset_info(REPO).sha) == (b"changed", before)
    hub.fault("PUT", drop_after=10)
    hub.fault("POST .*/commit/", lost=True)
    with pytest.raises(Exception, match=r"(?i)disconnect|reset|closed|without|eof"):
        add(api, {"data/b.parquet": b"b" * 100_000})  # the client retries the file, but not the commit
    assert hub.files("datasets", REPO)["data/b.parquet"] == b"b" * 100_000
