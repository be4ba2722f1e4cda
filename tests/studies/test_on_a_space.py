"""Tests of study pages as Spaces: a published Space runs by itself, and its answers survive if its disk is lost."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from local_hub.hub import VISITOR
from pages import Command, dataset
from refusals import refused

import saliency_bench as sb
from saliency_bench.hub.upload import publish
from saliency_bench.publishing.spaces import list_spaces, space_publication
from saliency_bench.spaces.pages.on_a_space import command_line
from saliency_bench.spaces.pages.serving import address
from saliency_bench.studies.answer_rows import add_lines
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.runs import runs_of

STUDIES = ("annotate", "assess", "peekaboom")
MASK = np.arange(60 * 80).reshape(60, 80) % 7 == 0
OPTIONS = "--json --sync-every 0.01"


class Space(Command):
    """Start a published Space like the Hub: `python app.py` in a separate folder with its environment variables."""

    def __init__(self, hub, name, folder, **variables):
        for path, content in hub.files("spaces", f"visitor/{name}").items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        environment = hub.env(VISITOR, home=folder.name, PORT="0", **variables)
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "app.py"], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=self.log
        )
        self.links = json.loads(self.process.stdout.readline() or "{}")
        self.url = self.links.get("page") or self.links.get("annotate")
        if self.url is None:
            pytest.fail(self.end()[1])

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.log.seek(0)
        return code, self.log.read()


@pytest.fixture(scope="module")
def here(shared_hub, tmp_path_factory):
    """Create a Hub with the three Spaces, a dataset to annotate, and a run with stored maps."""
    for name in STUDIES:
        publish(space_publication(name, "visitor"), api=shared_hub.api(VISITOR))
    folder = tmp_path_factory.mktemp("noise")
    dataset(3).to_parquet(folder / "test.parquet")
    upload(shared_hub, "visitor/noise", folder)
    return shared_hub


def upload(hub, repo, folder):
    line = [Path(sys.executable).with_name("hf"), "upload", repo, folder, "--repo-type", "dataset", "--private"]
    done = hub.run([str(word) for word in line], VISITOR)
    assert done.returncode == 0, done.stderr


def draw(space, name):
    key = space.call("api/join", body={"request": f"a random request of {name}"})["key"]
    count = 0
    while tasks := space.call("api/state", key)["tasks"]:
        unit = tasks[0]["unit"]
        sent = {"unit": unit, "kind": "mask", "runs": runs_of(MASK), "seconds": 1}
        space.call("api/answer", key, sent | {"request": f"{name} {unit} of a simulation"})
        count += 1
    return count


def copied(hub, repo, path):
    store = Store(path)
    for name, content in sorted(hub.files("datasets", repo).items()):
        if name.startswith(f"{path.name}/"):
            add_lines(store, content.decode().splitlines(), name)
    return store


def test_published_spaces_have_card_and_files(here):
    assert set(list_spaces()) - set(list_spaces(studies=False)) == set(STUDIES)
    for name in STUDIES:
        files = here.files("spaces", f"visitor/{name}")
        card = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
        assert (card["sdk"], card["app_port"], card["license"]) == ("docker", 7860, "apache-2.0")
        assert len(card["short_description"]) <= 60, "the Hub refuses longer descriptions"
        assert here.api(VISITOR).space_info(f"visitor/{name}").sdk == "docker"
        assert b'CMD ["python", "app.py"]' in files["Dockerfile"]
        assert f"saliency_bench/spaces/{name}/page.html" in files
        needed = {re.split(r"[<>=\[]", line)[0] for line in files["requirements.txt"].decode().splitlines()}
        assert needed >= {"starlette", "uvicorn", "sqlalchemy", "scikit-image", "huggingface_hub"}
        assert "gradio" not in needed


@pytest.mark.thorough
def test_space_resumes_after_losing_its_disk(here, tmp_path):
    variables = {"STUDY_DATASET": "visitor/noise", "STUDY_REPO": "visitor/drawn", "STUDY_OPTIONS": OPTIONS}
    first = Space(here, "annotate", tmp_path / "first", **variables)
    assert draw(first, "ada") == 3
    wait_for(lambda: b"answers since then: 0" in first.call("sync"), first)
    code, log = first.end(signal.SIGKILL)
    second = Space(here, "annotate", tmp_path / "second", **variables)
    assert draw(second, "ada") == 0, "copied answers and keys are restored"
    assert draw(second, "bob") == 3
    code, log = second.end(signal.SIGTERM)  # ends at once, as when a Space is restarted
    assert code == 143, log
    assert "Traceback" not in log
    assert here.repo("datasets", "visitor/drawn").private
    done = here.command("annotate", "--dataset", "visitor/noise", "--store", "here.db", "--name", "visitor/noise, test",
                        "--report", "--json", "--sync", "visitor/drawn", user=VISITOR, home="laptop")  # fmt: skip
    assert done.returncode == 2, "the store of the Space has another name"
    assert "annotate.db" in done.stderr
    done = here.command("annotate", "--dataset", "visitor/noise", "--store", "annotate.db", "--report", "--json",
                        "--sync", "visitor/drawn", user=VISITOR, home="laptop")  # fmt: skip
    assert json.loads(done.stdout)["answers"] == {"mask": 6}, done.stderr
    assert VISITOR.token not in log + done.stdout + done.stderr


@pytest.mark.slow
def test_shutdown_waits_for_a_slow_hub(here, tmp_path):
    variables = {"STUDY_DATASET": "visitor/noise", "STUDY_REPO": "visitor/late", "STUDY_OPTIONS": "--json"}
    space = Space(here, "annotate", tmp_path / "space", **variables)
    fault = here.fault("POST .*late/commit", delay=4)
    try:
        assert draw(space, "ada") == 3
        start = time.monotonic()
        code, log = space.end(signal.SIGTERM)
    finally:
        here.heal()
    assert (code, fault.seen) == (143, 1), log
    assert time.monotonic() - start > 4, "it waited for the answer of the Hub"
    assert len(copied(here, "visitor/late", tmp_path / "annotate.db").find().answers()) == 3


@pytest.mark.slow
def test_shutdown_without_hub_reports_uncopied_answers(here, tmp_path):
    variables = {"STUDY_DATASET": "visitor/noise", "STUDY_REPO": "visitor/gone", "STUDY_OPTIONS": "--json"}
    space = Space(here, "annotate", tmp_path / "space", **variables)
    here.fault("datasets/visitor/gone", status=500, times=1000)
    try:
        assert draw(space, "ada") == 3
        _, log = space.end(signal.SIGINT)
    finally:
        here.heal()
    assert re.search(
        r"NOT SYNCED: answers since [\d:]+ UTC exist only in annotate.db \(.*500.*\); restart to copy them", log
    )
    assert "Traceback" not in log
    assert len(Store(tmp_path / "space/annotate.db", create=False).find().answers()) == 3


def wait_for(condition, space):
    for _ in range(200):
        if condition():
            return
        space.process.poll()
        time.sleep(0.1)
    raise AssertionError(space.end(signal.SIGKILL))


@pytest.mark.slow
@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("kind", ["assess", "peekaboom"])
def test_space_serves_a_run_from_a_repository(here, judged, kind, tmp_path):
    variables = {"STUDY_RUN": judged, "STUDY_DATASET": "visitor/shapes", "STUDY_REPO": f"visitor/{kind}-answers"}
    space = Space(here, kind, tmp_path / "space", **variables, STUDY_OPTIONS=f"{OPTIONS} --images 2")
    key = space.call("api/join", body={"request": "a random request of ada"})["key"]
    state = space.call("api/state", key)
    if kind == "assess":
        place = state["maps"][0]["place"]
        sent = {"place": place, "ratings": dict.fromkeys(state["questions"], 2), "request": "a random request"}
    else:
        sent = {"place": state["place"], "step": state["step"], "choice": None}
    space.call("api/answer", key, sent)
    code, log = space.end()
    assert (code, "Traceback" in log) == (143, False), log
    study = copied(here, f"visitor/{kind}-answers", tmp_path / f"{kind}.db").find()
    assert (study.name, len(study.answers())) == (f"{kind}, judged", 1)


@pytest.fixture(scope="module")
def judged(here, shapes, resnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("judged") / "run"
    sb.run(dataset=str(shapes), model=str(resnet), split="train", limit=8, device="cpu", progress=False, out=out,
           explainers=["edges", "random"], metrics=["saliency_kae"], keep_maps=True)  # fmt: skip
    upload(here, "visitor/judged", out)
    upload(here, "visitor/shapes", shapes)
    return "visitor/judged"


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize(("run", "words"), [
    ("hub:visitor/noise", r"visitor/noise does not contain a finished run \(no summary.json\); upload"),
    ("hub:visitor/none", r"the Hub has no repository visitor/none that this account can read \(404\)"),
    ("hub:judged", "'hub:judged' is not a repository; use hub:OWNER/NAME"),
    ("hub:", "'hub:' is not a repository"),
])  # fmt: skip
def test_invalid_hub_runs_are_rejected(here, run, words):
    done = here.command("assess", "serve", run, "--store", "study.db", user=VISITOR, home="laptop")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert re.search(words, done.stderr)


@pytest.mark.parametrize(("kind", "variables", "words"), [
    ("annotate", {}, "set the variable STUDY_DATASET in the settings of this Space"),
    ("annotate", {"STUDY_DATASET": "a/b"}, "set the variable STUDY_REPO"),
    ("assess", {"STUDY_REPO": "a/b", "STUDY_DATASET": "a/c"}, "set the variable STUDY_RUN"),
    ("peekaboom", {"STUDY_REPO": "a/b", "STUDY_RUN": " "}, "set the variable STUDY_RUN"),
    ("annotate", {"STUDY_REPO": "a/b", "STUDY_DATASET": "a/c", "STUDY_OPTIONS": "--name 'x"},
     "No closing quotation"),
])  # fmt: skip
def test_missing_space_variables_are_rejected(kind, variables, words):
    refused(words, command_line, kind, variables)


def test_space_variables_become_the_command_line():
    given = {"STUDY_RUN": "a/run@v1", "STUDY_STORE": "postgresql://me@host/db", "STUDY_OPTIONS": "--name 'my study'"}
    assert command_line("assess", given) == [
        "assess", "serve", "hub:a/run@v1", "--store", "postgresql://me@host/db",
        "--host", "0.0.0.0", "--port", "7860", "--name", "my study"]  # fmt: skip


def test_address_is_the_public_url_on_a_space(monkeypatch):
    monkeypatch.setenv("SPACE_HOST", "visitor-annotate.hf.space")
    assert address("0.0.0.0", 7860) == "https://visitor-annotate.hf.space/"
    monkeypatch.delenv("SPACE_HOST")
    assert address("0.0.0.0", 7861) == "http://127.0.0.1:7861/"
