"""Control the local Hub in tests: start, stop, inspect, configure faults, and run clients."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from local_hub.faults import Fault, Faulty
from local_hub.server import Asked, Server, User
from local_hub.store import Repo, Store

FOUNDER = User("founder", "hf_FoUnDeRsSeCrEtToKeN0123456789abcd", orgs=("saliency-bench",))
VISITOR = User("visitor", "hf_ViSiToRsSeCrEtToKeN0123456789abcd")
READER = User("reader", "hf_ReAdErSsEcReTtOkEn0123456789abcdef", orgs=("saliency-bench",), write=False)


class LocalHub:
    """Server in a thread, on a free port.

    with LocalHub(folder) as hub:
        HfApi(endpoint=hub.url, token=FOUNDER.token).create_repo("saliency-bench/x", repo_type="dataset")
        hub.python("import datasets; datasets.load_dataset('saliency-bench/x')")
    """

    def __init__(self, root: Path, users: tuple[User, ...] = (FOUNDER, VISITOR, READER)):
        self.root = root
        self.store = Store(root / "hub")
        self.server = Server(self.store, list(users))
        self.faulty = Faulty(self._normal)
        self.url = ""

    async def _normal(self, scope, receive, send):
        await self.server(scope, receive, send)

    def __enter__(self) -> "LocalHub":
        taken = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        import uvicorn

        # By default, uvicorn sets the levels of its loggers for the whole process, even after the server has stopped.
        config = uvicorn.Config(self.faulty, log_config=None, lifespan="off", http="h11", ws="none")
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [taken]}, daemon=True)
        self._thread.start()
        while not self._uvicorn.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self._thread.join(timeout=10)

    # Clients

    def api(self, user: User | None = FOUNDER):
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.url, token=user.token if user else False)

    def env(self, user: User | None = FOUNDER, home: str = "home", **more: str) -> dict[str, str]:
        """Return the environment of a client process: this environment with the Hub, private caches and a token.

        `home` is the name of the cache folder, next to the Hub's folder. The same name simulates the same machine,
        another name a new machine.
        """
        place = self.root / home
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith(("HF_", "HUGGING_FACE", "DATASETS_"))}  # fmt: skip
        own = {
            "HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(place / "hf"),
            "HF_MODULES_CACHE": str(place / "modules"), "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1",
            "SALIENCY_BENCH_CACHE": str(place / "saliency-bench"), "GRADIO_ANALYTICS_ENABLED": "False",
        }  # fmt: skip
        return clean | own | ({"HF_TOKEN": user.token} if user else {}) | more

    def python(self, code: str, user: User | None = FOUNDER, home: str = "home", timeout: float = 600,
               **more: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
        return self.run([sys.executable, "-c", code], user, home, timeout, **more)

    def command(self, *words: object, user: User | None = FOUNDER, home: str = "home", timeout: float = 600,
                **more: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
        """Run `saliency-bench` with these arguments."""
        line = [sys.executable, "-m", "saliency_bench", *map(str, words)]
        return self.run(line, user, home, timeout, **more)

    def run(self, line: list[str], user: User | None = FOUNDER, home: str = "home", timeout: float = 600,
            **more: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
        (self.root / home).mkdir(parents=True, exist_ok=True)
        return subprocess.run(line, env=self.env(user, home, **more), cwd=self.root / home, capture_output=True,
                              text=True, timeout=timeout)  # fmt: skip

    # Inside

    @property
    def asked(self) -> list[Asked]:
        """Return all answered requests since the start, oldest first."""
        return self.server.asked

    def lines(self, match: str = "") -> list[str]:
        """Return the requests as "METHOD /path STATUS", limited to those that contain `match`."""
        return [str(each) for each in list(self.asked) if match in str(each)]

    def repo(self, kind: str, name: str) -> Repo:
        """Return a repository; `kind` is "models", "datasets" or "spaces"."""
        return self.store.repos[kind, name]

    def files(self, kind: str, name: str, revision: str = "main") -> dict[str, bytes]:
        found = self.repo(kind, name).files(revision)
        return {path: self.store.blob(entry.sha256).read_bytes() for path, entry in found.items()}

    # Faults

    def fault(self, match: str, **what) -> Fault:
        """Configure a fault for the next matching requests; see `faults.Fault`."""
        self.faulty.faults.append(Fault(match, **what))
        return self.faulty.faults[-1]

    def heal(self) -> None:
        self.faulty.faults.clear()

    def change_in_place(self, kind: str, name: str, revision: str, path: str, content: bytes) -> None:
        """Change the content of a file under the same commit id, which a correct Hub never does."""
        repo = self.repo(kind, name)
        repo.files(revision)[path] = self.store.entry_of(path, content)
        self.store.save(repo)
