"""Run a local PostgreSQL server in a separate folder, if Debian's package is installed."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def programs() -> Path | None:
    """Return the folder of initdb and postgres, which Debian does not add to PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = shutil.which("initdb") or (str(found[-1]) if found else None)
    return None if path is None else Path(path).parent


class Postgres:
    """Context manager of a server. The server cannot run as root, so root starts it as the user postgres.

    parent: parent of the server's folder, which the user postgres must be able to enter.
    """

    def __init__(self, parent: str | Path = "/tmp"):
        self.user = "postgres" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=parent))
        if self.user:
            shutil.chown(self.folder, self.user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://study@127.0.0.1:{self.port}"
        self.data, self.programs = self.folder / "data", programs()
        made = [self.programs / "initdb", "-D", self.data, "-A", "trust", "-U", "study", "--no-sync", "-E", "UTF8"]
        subprocess.run(made, check=True, capture_output=True, cwd="/", user=self.user)

    def start(self) -> None:
        """Start the server and wait until it responds."""
        import psycopg

        options = ["-D", self.data, "-p", str(self.port), "-k", self.folder, "-c", "listen_addresses=127.0.0.1"]
        line = [self.programs / "postgres", *options]
        self.server = subprocess.Popen(line, cwd="/", user=self.user, stderr=subprocess.DEVNULL)
        for _ in range(300):
            with suppress(psycopg.OperationalError), psycopg.connect(f"{self.url}/postgres"):
                return
            time.sleep(0.1)
        raise RuntimeError("PostgreSQL did not start in 30 s")

    def crash(self) -> None:
        """Kill all server processes at once, like a power failure, and start the server again."""
        self.server.send_signal(signal.SIGQUIT)
        self.server.wait(timeout=60)
        self.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the server for a while, as if the machine hung."""
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        processes = [self.server.pid, *map(int, children)]
        for process in processes:
            with suppress(ProcessLookupError):  # a worker of the server may have ended since
                os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def create(self, name: str) -> str:
        """Create an empty database and return its URL."""
        import psycopg

        with psycopg.connect(f"{self.url}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{self.url}/{name}"

    def __enter__(self) -> "Postgres":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.send_signal(signal.SIGQUIT)  # its files are not read again
        self.server.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)
