"""Tests of a store in a Hub repository: no rows are lost with the disk or overwritten by another server."""

import threading
from itertools import chain

import pytest
from local_hub.hub import FOUNDER, READER, VISITOR
from refusals import refused

from saliency_bench.studies.answer_rows import add_lines, lines_after
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.sync import Sync

REPO = "visitor/answers"


def sync_of(hub, path, user=VISITOR, repo=REPO, **more):
    path.parent.mkdir(exist_ok=True)
    return Sync(path, repo, api=hub.api(user), **more)


def started(hub, path, **more):
    sync = sync_of(hub, path, **more)
    sync.restore()
    return sync, study_in(path)


def study_in(path, **settings):
    path.parent.mkdir(exist_ok=True)
    return Store(path).study("annotate", "study", configuration=settings)


def answer(study, *names, unit="image", revisions=1):
    for name in names:
        person = study.join(f"a random request of {name}").name
        study.assign(person, [unit])
        for revision in range(revisions):
            study.record(person, unit, f"{name} {revision} a random request", {"by": name, "revision": revision})


def by(path):
    return sorted(one.payload["by"] for one in Store(path, create=False).find().answers(last=False))


def copied(hub, path):
    files = hub.files("datasets", REPO)
    lines = [files[name].decode().splitlines() for name in sorted(files) if name.startswith("study.db/")]
    add_lines(Store(path), chain(*lines), REPO)  # together, because only one server's file has the row of the study
    return path


def merge(here, other):
    return add_lines(Store(here), lines_after(Store(other), {})[0], "other")


def test_answers_are_restored_after_disk_loss(hub, tmp_path):
    lines = []
    first, study = started(hub, tmp_path / "study.db", say=lines.append)
    answer(study, "ada", "bob")
    first.push()
    assert hub.repo("datasets", REPO).private
    assert "2 answers copied to visitor/answers at" in lines[-1]
    (name,) = set(hub.files("datasets", REPO)) - {".gitattributes"}
    assert name.startswith("study.db/")
    again = sync_of(hub, tmp_path / "new/study.db", say=lines.append)
    again.restore()
    assert lines[-1] == "6 rows restored from visitor/answers"
    assert again.status() == "answers copied to the Hub: before this start\nanswers since then: 0\n"
    assert by(tmp_path / "new/study.db") == ["ada", "bob"]
    name = study_in(tmp_path / "new/study.db").join("a random request of ada").name
    assert name in {one.person for one in study.answers()}, "the key of a browser stays valid"


def test_answers_of_a_failed_commit_are_sent_again(hub, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("the Hub does not respond")

    sync, study = started(hub, tmp_path / "study.db")
    answer(study, "ada")
    with monkeypatch.context() as patch:
        patch.setattr(sync.api, "create_commit", fail)
        with pytest.raises(ConnectionError):
            sync.push()
    assert "answers since then: 1" in sync.status()
    sync.push()
    assert by(copied(hub, tmp_path / "copy.db")) == ["ada"]


def test_only_new_answers_are_committed(hub, tmp_path):
    sync, study = started(hub, tmp_path / "study.db")
    answer(study, "ada")
    sync.push()
    head = hub.api().repo_info(REPO, repo_type="dataset", token=VISITOR.token).sha
    sync.push()
    again = sync_of(hub, tmp_path / "study.db")
    again.restore()
    again.push()
    assert hub.api(VISITOR).repo_info(REPO, repo_type="dataset").sha == head
    answer(study, "bob")
    again.push()
    assert hub.api(VISITOR).repo_info(REPO, repo_type="dataset").sha != head


@pytest.mark.slow
def test_every_commit_is_a_prefix_of_the_answers(hub, tmp_path, monkeypatch):
    """Test that each commit is a prefix of the answers, both for extended and for new files."""
    monkeypatch.setattr("saliency_bench.studies.sync.LARGE", 5000)
    sync, study = started(hub, tmp_path / "study.db")
    names = [f"person {number}" for number in range(60)]
    writing = threading.Thread(target=answer, args=(study, *names))
    writing.start()
    copies = []
    while writing.is_alive():
        sync.push()
        copies.append(by(copied(hub, tmp_path / f"copy-{len(copies)}.db")))
    writing.join()
    sync.push()
    answer(study, "person 60")
    sync.push()
    names.append("person 60")
    for people in copies:
        assert people == sorted(names[: len(people)])
    assert by(copied(hub, tmp_path / "last.db")) == sorted(names)
    assert len(hub.files("datasets", REPO)) > 2, "a large file is followed by another"


@pytest.mark.slow
def test_two_servers_merge_their_answers(hub, tmp_path):
    syncs, studies = [], []
    for name in ("one", "two"):
        sync, study = started(hub, tmp_path / name / "study.db")
        syncs.append(sync), studies.append(study)
        if name == "one":
            answer(studies[0], "ada")
            syncs[0].push()
    answer(studies[0], "bob", revisions=2)
    answer(studies[1], "cid", "dan")
    studies[1].review(studies[1].answers()[-1].id, "rita", "accept", "a random request of rita")
    syncs[1].push()
    syncs[0].push()
    everyone = ["ada", "bob", "bob", "cid", "dan"]
    assert by(tmp_path / "one/study.db") == everyone
    review = next(iter(studies[0].reviews().items()))
    (reviewed,) = [one for one in studies[0].answers() if one.id == review[0]]
    assert (reviewed.payload["by"], review[1].verdict) == ("dan", "accept")
    answer(studies[1], "eve")
    syncs[1].push()
    assert by(tmp_path / "two/study.db") == sorted([*everyone, "eve"])
    assert not syncs[0].problem
    assert by(copied(hub, tmp_path / "copy.db")) == sorted([*everyone, "eve"])


@pytest.mark.slow
def test_concurrent_commit_is_not_overwritten(hub, tmp_path, monkeypatch):
    first, second = (sync_of(hub, tmp_path / name / "study.db") for name in ("one", "two"))
    for sync, name in ((first, "ada"), (second, "bob")):
        sync.restore()
        answer(study_in(sync.path), name)
    fetch = first._fetch

    def late():
        added = fetch()
        second.push()  # after the first server has listed the repository
        return added

    monkeypatch.setattr(first, "_fetch", late)
    first.push()
    assert by(copied(hub, tmp_path / "copy.db")) == ["ada", "bob"]


def test_browser_that_joined_two_servers_is_a_single_person(tmp_path):
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    for path in paths:
        answer(study_in(path), "ada")
    names = [study_in(path).people()[0] for path in paths]
    assert names[0] == names[1], "the pseudonym follows from the key"
    study = study_in(paths[1])
    study.record(names[1], "image", "another request of ada", {"by": "ada again"})
    study.assign(names[1], ["image 2"])
    found = merge(*paths)
    assert (found.added, found.left_out, by(paths[0])) == (2, 0, ["ada", "ada again"])
    assert {one.person for one in study_in(paths[0]).answers(last=False)} == {names[0]}
    assert [one.unit for one in study_in(paths[0]).assignments(names[0])] == ["image", "image 2"]


def test_merge_leaves_out_a_conflicting_answer(tmp_path):
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    answer(study_in(paths[0]), "ada")
    Store(paths[0]).backup(paths[1])
    for number, path in enumerate(paths):
        study = study_in(path)
        study.record(study.people()[0], "image", f"request {number} for a second answer", {"by": f"ada on {number}"})
    found = merge(*paths)
    assert (found.added, found.left_out, by(paths[0])) == (0, 1, ["ada", "ada on 0"])


def test_restore_rejects_unusable_repositories(hub, tmp_path):
    hub.api(VISITOR).create_repo("visitor/open", repo_type="dataset")
    for user, repo, words in (
        (VISITOR, "visitor/open", "visitor/open is public, but people's answers are copied only to private"),
        (VISITOR, "saliency-bench/answers", "visitor may not write to saliency-bench/answers"),
        (READER, "saliency-bench/answers", "with this token, which only has read access"),
        (None, "visitor/answers", "needs a token"),
        (VISITOR, "answers", "--sync must be OWNER/NAME"), (VISITOR, "a/b/c", "--sync must be OWNER/NAME"),
    ):  # fmt: skip
        error = refused(words, lambda user=user, repo=repo: sync_of(hub, tmp_path / "study.db", user, repo).restore())
        assert not any(one.token in error for one in (FOUNDER, VISITOR, READER))
        assert not (tmp_path / "study.db").exists()


def test_public_repository_gets_no_further_answers(hub, tmp_path, capsys):
    sync, study = started(hub, tmp_path / "study.db")
    answer(study, "ada")
    sync.push()
    before = hub.files("datasets", REPO)
    hub.api(VISITOR).update_repo_settings(REPO, repo_type="dataset", visibility="public")
    answer(study, "bob")
    sync._try()
    assert hub.files("datasets", REPO) == before
    assert "NOT SYNCED" in capsys.readouterr().err
    assert "answers since then: 1\nCOPYING FAILS" in sync.status()


@pytest.mark.slow
def test_restore_rejects_another_study_and_damaged_rows(hub, tmp_path):
    sync = sync_of(hub, tmp_path / "study.db")
    sync.restore()
    answer(study_in(tmp_path / "study.db", annotators=3), "ada")
    sync.push()
    answer(study_in(tmp_path / "new/study.db", annotators=4), "bob")
    words = r"a different configuration \(annotators 3, now 4\); use a different --name"
    refused(words, sync_of(hub, tmp_path / "new/study.db").restore)
    assert by(tmp_path / "new/study.db") == ["bob"]
    hub.api(VISITOR).upload_file(
        path_or_fileobj=b"no row\n", path_in_repo="study.db/a.jsonl", repo_id=REPO, repo_type="dataset"
    )
    words = r"study.db of visitor/answers cannot be merged into the local store: .*not a copy of a store"
    refused(words, sync_of(hub, tmp_path / "study.db").restore)


def test_rows_without_their_study_are_rejected(tmp_path):
    answer(study_in(tmp_path / "study.db"), "ada")
    lines, _ = lines_after(Store(tmp_path / "study.db"), {})
    words = "the file has rows of the study 'study' but not the study itself"
    refused(words, add_lines, Store(tmp_path / "new.db"), lines[1:], "the file")
    assert not lines_after(Store(tmp_path / "new.db"), {})[0]


@pytest.mark.slow
def test_failing_hub_does_not_stop_the_study(hub, tmp_path, capsys):
    sync, study = started(hub, tmp_path / "study.db", minutes=0.005)
    with sync:
        hub.fault("/commit/", status=500, times=1000)
        answer(study, "ada")
        for fails in (True, False):
            for _ in range(400):
                if bool(sync.problem) == fails:
                    break
                threading.Event().wait(0.05)
            assert ("COPYING FAILS" in sync.status()) == fails
            hub.heal()
        assert "answers since then: 0" in sync.status()
        answer(study, "bob")
    assert by(copied(hub, tmp_path / "copy.db")) == ["ada", "bob"], "the last answers are copied at the end"
    errors = capsys.readouterr().err
    assert "NOT SYNCED: answers since" in errors
    assert VISITOR.token not in errors


@pytest.mark.parametrize(("place", "minutes", "words"), [
    ("postgresql://someone@host/name", 5, "needs a SQLite file"),
    ("study.db", 0, "--sync-every must be a positive number of minutes"),
    ("study.db", float("nan"), "--sync-every must be a positive number of minutes"),
])  # fmt: skip
def test_sync_rejects_invalid_store_and_interval(place, minutes, words):
    refused(words, Sync, place, REPO, minutes)
