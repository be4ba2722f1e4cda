"""Check that other users can load everything in a namespace.

The check runs in a new process with empty caches and no token.

The process receives a JSON object that lists what to check: {"namespace", "datasets": {repository: split}, "models",
"metrics", "runs"}.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from saliency_bench.errors import UserError, one_line

KEPT = ("HF_ENDPOINT", "HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY", "HF_UPDATE_DOWNLOAD_COUNTS")
OURS = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "DATASETS_", "TRANSFORMERS_", "SALIENCY_BENCH_")


def check_as_stranger(published: dict[str, Any]) -> list[str]:
    """Check the published items, and return a line for each item that another user can load, compare or review.

    Raises:
        UserError: A check failed. The message contains the last line that the process printed.
    """
    with TemporaryDirectory(prefix="saliency-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "saliency_bench.push_scripts._stranger", json.dumps(published)],
            env=_environment(Path(folder)), cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(
            f"the check that runs without your token failed: {one_line(last, 500)}; run the same command again"
        )
    return done.stdout.splitlines()


def _environment(folder: Path) -> dict[str, str]:
    """Return this process's environment variables with separate cache folders and without tokens."""
    clean = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(OURS)}
    caches = {"HF_HOME": "hf", "HF_MODULES_CACHE": "modules", "SALIENCY_BENCH_CACHE": "saliency-bench"}
    empty = {name: str(folder / subfolder) for name, subfolder in caches.items()}
    return clean | empty | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


def main(published: dict[str, Any]) -> None:
    """Check every published item, and print a line for each item."""
    from saliency_bench.hub.client import default_api
    from saliency_bench.hub.patience import patiently

    board = f"{published['namespace']}/results"
    checks: list[tuple[str, Callable[[], str]]] = [
        *((repo, lambda repo=repo, split=split: _dataset(repo, split))
          for repo, split in published["datasets"].items()),
        *((repo, lambda repo=repo: _model(repo)) for repo in published["models"]),
        *((repo, lambda repo=repo: _metric(repo)) for repo in published["metrics"]),
        (board, lambda: _board(board)),
        (board, lambda: _command("review", board)),
        *((board, lambda run=run: _command("submit", run, "--namespace", published["namespace"], "--dry-run"))
          for run in published["runs"]),
    ]  # fmt: skip
    for repo, check in checks:
        line = patiently(check, repo, default_api(), lambda text: print(text, flush=True))
        print(line, flush=True)


def _dataset(repo: str, split: str) -> str:
    from datasets import load_dataset

    return f'load_dataset("{repo}"): {len(load_dataset(repo, split=split))} samples of {split}'


def _model(repo: str) -> str:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    AutoImageProcessor.from_pretrained(repo)
    network = AutoModelForImageClassification.from_pretrained(repo)
    return f'from_pretrained("{repo}"): {network.config.num_labels} classes'


def _metric(repo: str) -> str:
    import evaluate

    return f'evaluate.load("{repo}"): {evaluate.load(repo).name}'


def _board(repo: str) -> str:
    from saliency_bench.board.view.live import Live

    page = Live(repo).page
    tables = [page.standings.table(name) for name in page.standings.metrics]
    averaged = sum(row.value is not None for table in tables for row in table.rows)
    statuses = [row.status for row in page.archive.rows]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)) or "none"
    return f'load_results("{repo}"): {len(statuses)} rows ({counts}); Overall has {averaged}'


def _command(name: str, *words: str) -> str:
    """Run a saliency-bench command as if from a terminal, and return the first line of its output."""
    from saliency_bench import cli

    shown = StringIO()
    with redirect_stdout(shown):
        code = cli.main([name, *words])
    if code > 1:  # 1 is also valid: it means that an open submission of some user must not be merged
        raise UserError(f"saliency-bench {name} exited with code {code}")
    return f"{name}: {(shown.getvalue().splitlines() or ['nothing'])[0]}"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
