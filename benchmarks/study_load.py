"""Simulate annotators who draw as fast as possible, and check that each confirmed answer is stored exactly once.

example:
  python benchmarks/study_load.py --images 10000 --people 20 --seconds 30
  python benchmarks/study_load.py --store postgresql://user@host/empty-database

Each person joins, requests the state, and sends masks over a single connection. Some answers are sent twice, as by a
page that lost its connection. The script prints the answers per second, the time from sending an answer to the next
image (median, 95 %, maximum), the memory of the server, and how many confirmed answers are missing, changed or
duplicated.
"""

import argparse
import http.client
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from datasets import Dataset, Features, Image, Value
from sqlalchemy import select

from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.runs import runs_of
from saliency_bench.studies.study_tables import answers
from saliency_bench.utils.pictures import png

SIDE = 224
AGAIN = 0.05  # share of answers that are sent twice


def make_dataset(folder: Path, count: int) -> Path:
    """Write a dataset of images with a single colour."""
    colours = np.random.default_rng(0).integers(0, 255, (count, 3), np.uint8)
    pictures = [{"bytes": png(np.full((SIDE, SIDE, 3), colour, np.uint8)), "path": None} for colour in colours]
    rows = {"image_id": [f"image-{index:06d}" for index in range(count)], "image": pictures}
    Dataset.from_dict(rows, features=Features({"image_id": Value("string"), "image": Image()})).save_to_disk(folder)
    return folder


@contextmanager
def served(dataset: Path, store: str, *options: str) -> Iterator[tuple[int, subprocess.Popen]]:
    """Serve the page in a separate process; yield (port, process)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "saliency_bench", "annotate", "--dataset", str(dataset), "--store", store,
            "--name", "load", "--port", str(port), "--json", *options]  # fmt: skip
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield port, process
    finally:
        process.terminate()
        process.wait()


def mask(draw: random.Random) -> list[int]:
    """Return the run lengths of a mask with a random ellipse."""
    y, x = np.mgrid[:SIDE, :SIDE]
    height, width = draw.uniform(20, 90), draw.uniform(20, 90)
    place = draw.uniform(60, 160), draw.uniform(60, 160)
    return runs_of(((y - place[0]) / height) ** 2 + ((x - place[1]) / width) ** 2 < 1)


def draw_on(port: int, number: int, until: float) -> tuple[str, dict[str, str], list[float]]:
    """Draw as one person. Return (pseudonym, {request: unit} of confirmed answers, seconds per request)."""
    draw, key, confirmed, seconds = random.Random(number), "", {}, []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    masks = [mask(draw) for _ in range(8)]

    def call(path: str, body: dict | None = None) -> dict:
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, sent, {"X-Key": key})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {content[:200]!r}")
        return json.loads(content)

    key = call("/api/join", {"request": f"person {number:06d} of the load"})["key"]
    state = call("/api/state")
    while time.monotonic() < until and state["tasks"]:
        unit, request = state["tasks"][0]["unit"], f"{number}-{len(confirmed)}-{draw.getrandbits(64):x}"
        body = {"unit": unit, "kind": "mask", "request": request, "runs": draw.choice(masks), "seconds": 1.0}
        for _ in range(1 + (draw.random() < AGAIN)):
            start = time.monotonic()
            state = call("/api/answer", body)
            seconds.append(time.monotonic() - start)
        confirmed[request] = unit
    return state["person"], confirmed, seconds


def check(store: str, confirmed: dict[str, tuple[str, str]]) -> int:
    """Return how many confirmed answers are missing in the store, changed or duplicated."""
    opened = Store(store, create=False)
    columns = select(answers.c.request, answers.c.person, answers.c.unit).where(answers.c.study == opened.find().id)
    with opened.reading() as connection:
        rows = [(request, (person, unit)) for request, person, unit in connection.execute(columns)]
    opened.close()
    stored = dict(rows)
    wrong = sum(stored.get(request) != given for request, given in confirmed.items())
    return wrong + len(rows) - len({given for _, given in rows})


def memory_of(process: subprocess.Popen) -> float:
    """Return the peak memory of a process in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, metavar="N", help="number of images (default: 10000)")
    parser.add_argument("--people", type=int, default=20, metavar="N", help="number of people (default: 20)")
    parser.add_argument("--seconds", type=float, default=30, metavar="S", help="duration in seconds (default: 30)")
    parser.add_argument("--store", metavar="PLACE", help="an empty PostgreSQL database (default: a new SQLite file)")
    args = parser.parse_args()
    with TemporaryDirectory() as scratch:
        dataset = make_dataset(Path(scratch) / "dataset", args.images)
        store = args.store or str(Path(scratch) / "study.db")
        with served(dataset, store) as (port, process), ThreadPoolExecutor(args.people) as pool:
            start = time.monotonic()
            done = list(pool.map(lambda number: draw_on(port, number, start + args.seconds), range(args.people)))
            took, memory = time.monotonic() - start, memory_of(process)
        confirmed = {request: (person, unit) for person, own, _ in done for request, unit in own.items()}
        seconds = np.array([value for _, _, own in done for value in own])
        wrong = check(store, confirmed)
    median, most, longest = np.quantile(seconds, [0.5, 0.95, 1])
    speed = f"{len(confirmed) / took:.1f} answers a second"
    print(f"{speed}; {median:.3f} s, 95 % within {most:.3f} s, longest {longest:.3f} s; {memory:.0f} MB; "
          f"{len(confirmed)} confirmed, {wrong} of them lost, changed or duplicated")  # fmt: skip
    return int(wrong > 0 or not confirmed)


if __name__ == "__main__":
    sys.exit(main())
