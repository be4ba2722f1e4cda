"""Kill uploads to a local Hub: each upload is one commit, so readers see the new or the previous state.

The uploads are new datasets, newer versions of published datasets, models, and results in one pull request.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from children import Children
from transformers import ResNetConfig

import saliency_bench as sb
from kill_loops.common import NETWORK, Outcome, bad_luck, working_in
from saliency_bench.utils.hashing import hash_of

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from local_hub import FOUNDER, LocalHub

SPACE = FOUNDER.orgs[0]
SHORT = {"epochs": 1, "size": 32, "limit": 64, "device": "cpu", "progress": False}
PHASES = {
    "/commit/": "after the commit", "lfs": "while sending files", "preupload": "while sending files",
    "repos/create": "after making the repository",
}  # fmt: skip
Files = dict[str, str]  # {path: hash of the content}


def push(url: str, argv: list[str]) -> None:
    """Run a command line in a child with the Hub at this URL."""
    import huggingface_hub.constants as constants

    address = url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": address, "HF_HUB_OFFLINE": False,
                        "HF_HUB_DISABLE_XET": True, "HF_HUB_DISABLE_TELEMETRY": True}.items():  # fmt: skip
        setattr(constants, name, value)
    os.environ["HF_TOKEN"] = FOUNDER.token
    for number in (1, 2):
        os.dup2(os.open(f"said.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    from saliency_bench.cli import main

    if code := main(argv):
        sys.exit(code)


def shown(hub: LocalHub, kind: str, name: str) -> Files:
    """Return the content of the repository as a reader sees it, leaving out the Hub's own initial files."""
    if (kind, name) not in hub.store.repos:
        return {}
    files = hub.repo(kind, name).files("main")
    missing = [path for path, entry in files.items() if not hub.store.has(entry.sha256)]
    found = {path: _hash(hub, path, entry.sha256, name) for path, entry in files.items() if path != ".gitattributes"}
    return found | dict.fromkeys(missing, "its content is missing")


def _hash(hub: LocalHub, path: str, sha256: str, name: str) -> str:
    """Return the hash of a file's content. In the card, the name of the repository is removed first."""
    if not path.endswith(".md"):
        return sha256
    return hash_of(hub.store.blob(sha256).read_text(encoding="utf-8").replace(name.partition("/")[2], "NAME"))


@contextmanager
def reading(state: Callable[[], object]) -> Iterator[list]:
    """Poll the repository as a reader while the context is open. Yield a list of all observed states."""
    seen: list = [state()]
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            if (now := state()) not in seen:
                seen.append(now)
            time.sleep(0.001)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield seen
    finally:
        done.set()
        reader.join()


def phase(lines: list[str]) -> str:
    """Return the phase of the client's last request."""
    last = lines[-1] if lines else ""
    for part, where in PHASES.items():
        if part in last:
            return where
    return "while comparing" if lines else "before the first request"


class Pushes:
    """Kill loop for uploads to repositories of several types."""

    def __init__(self, hub: LocalHub, children: Children, outcome: Outcome):
        self.hub, self.children, self.outcome = hub, children, outcome

    def whole(self, argv: list[str]) -> int:
        """Push without killing the command, and return the number of requests."""
        before = len(self.hub.asked)
        self.children.to_the_end(push, {"url": self.hub.url, "argv": argv})
        return len(self.hub.asked) - before

    def killed(self, argv: list[str], dice: random.Random, requests: int) -> None:
        start, enough = len(self.hub.asked), dice.randrange(requests)
        settings = {"url": self.hub.url, "argv": argv}
        delay = dice.uniform(0, 0.3 if enough == 0 else 0.02)
        if self.children.killed_at(lambda: len(self.hub.asked) - start >= enough, delay, push, settings):
            time.sleep(0.05)  # because the server finishes the request
            self.outcome.kills[phase(self.hub.lines()[start:])] += 1

    def repository(
        self, number: int, kind: str, name: str, argv: list[str], allowed: list[Files], requests: int
    ) -> None:
        """Repeat the push, killing it at random moments, until the upload is complete.

        `allowed` contains the states that a reader may see; the last one must be the result.
        """
        dice = random.Random(number)
        with reading(lambda: shown(self.hub, kind, name)) as seen:
            for _ in range(bad_luck(number)):
                self.killed(argv, dice, requests)
            self.whole(argv)
        if half := [files for files in seen if files not in allowed]:
            self.outcome.differing.append(f"{name}: a reader saw half of it, {sorted(half[0])}")
        if shown(self.hub, kind, name) != allowed[-1]:
            self.outcome.differing.append(f"{name}: the repository")
        self.outcome.done += 1


def pushes(count: int, dataset: Path, folder: Path, children: Children) -> Outcome:
    """Kill pushes; `dataset` is the training data of the pushed model."""
    outcome = Outcome("pushes")
    with LocalHub(folder) as hub, working_in(folder / "pushes"):
        loops = Pushes(hub, children, outcome)
        training = {"dataset": str(dataset), "model": ResNetConfig(**NETWORK), "out": "trained"} | SHORT
        children.to_the_end(sb.train, training)
        model = Path("trained")
        versions = [
            sb.build("shapes-xai", Path(f"version {size}"), size=size, count=90, progress=False) for size in (32, 36)
        ]
        expected: list[list[Files]] = [[{}], [{}]]
        requests = {}
        for version, built in enumerate(versions):
            name = "undisturbed"
            requests[version] = loops.whole(["push", "dataset", str(built), "--name", name])
            expected[0].append(shown(hub, "datasets", f"{SPACE}/{name}"))
        requests["model"] = loops.whole(["push", "model", str(model), "--license", "mit", "--name", "undisturbed"])
        expected[1].append(shown(hub, "models", f"{SPACE}/undisturbed"))
        for number in range(count):
            if number % 4 == 3:
                name = f"pushed-model-{number}"
                argv = ["push", "model", str(model), "--license", "mit", "--name", name]
                loops.repository(number, "models", f"{SPACE}/{name}", argv, expected[1], requests["model"])
                continue
            name, version = f"pushed-{number}", number % 2
            if version:  # a newer version of a published dataset
                loops.whole(["push", "dataset", str(versions[0]), "--name", name])
            argv = ["push", "dataset", str(versions[version]), "--name", name]
            allowed = expected[0][version : version + 2]
            loops.repository(number, "datasets", f"{SPACE}/{name}", argv, allowed, requests[version])
    return outcome
