"""Folders of runs that people have uploaded, between the look at what would be added and the pull request."""

import shutil
import tempfile
from collections import deque
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from time import time

PREFIX = "saliency-bench-upload-"
MOST = 3  # of one account, as in so many tabs of a browser


class Folders:
    """The newest few of each account; what is older, or left by a server that was killed, is removed by its age."""

    def __init__(self, kept_for: float):
        self.kept_for = kept_for
        self._own: dict[str, deque[str]] = {}
        self._lock = Lock()
        self.sweep()

    def make(self, account: str) -> str:
        """A new empty folder, for which an account may lose its oldest."""
        self.sweep()
        folder = mkdtemp(prefix=PREFIX)
        with self._lock:
            self._own = {name: own for name, own in self._own.items() if any(Path(one).exists() for one in own)}
            own = self._own.setdefault(account, deque())
            own.append(folder)
            while len(own) > MOST:
                remove(own.popleft())
        return folder

    def sweep(self) -> None:
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            try:
                is_old = path.stat().st_mtime < time() - self.kept_for
            except OSError:  # gone in the meantime
                continue
            if is_old:
                remove(str(path))


def remove(folder: str | None) -> None:
    """Remove a folder that `Folders` has made, and nothing else."""
    if folder and Path(folder).name.startswith(PREFIX) and Path(folder).parent == Path(tempfile.gettempdir()):
        shutil.rmtree(folder, ignore_errors=True)
