"""Temporary folders for unpacked runs, which are needed between the check of an upload and its pull request."""

import shutil
import tempfile
from collections import deque
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from time import time

PREFIX = "saliency-bench-upload-"
MOST = 3  # maximum number of folders per account, one per browser tab


class Folders:
    """The newest folders of each account. Older folders, and those of a server that was killed, are deleted."""

    def __init__(self, kept_for: float):
        self.kept_for = kept_for
        self._by_account: dict[str, deque[str]] = {}
        self._lock = Lock()
        self.sweep()

    def make(self, account: str) -> str:
        """Create an empty folder and return it. If the account has more than `MOST` folders, delete the oldest."""
        self.sweep()
        folder = mkdtemp(prefix=PREFIX)
        with self._lock:
            self._by_account = {
                name: folders
                for name, folders in self._by_account.items()
                if any(Path(path).exists() for path in folders)
            }
            folders = self._by_account.setdefault(account, deque())
            folders.append(folder)
            while len(folders) > MOST:
                remove(folders.popleft())
        return folder

    def sweep(self) -> None:
        """Delete old folders."""
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            try:
                is_old = (
                    abs(path.stat().st_mtime - time()) > self.kept_for
                )  # abs, because the clock may have been set back
            except OSError:  # deleted in the meantime
                continue
            if is_old:
                remove(str(path))


def remove(folder: str | None) -> None:
    """Delete a folder if it was created by `Folders`."""
    if folder and Path(folder).name.startswith(PREFIX) and Path(folder).parent == Path(tempfile.gettempdir()):
        shutil.rmtree(folder, ignore_errors=True)
