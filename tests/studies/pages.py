"""Helpers for pages of studies: servers in processes that can be killed, and a second implementation of drawing."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException
from itertools import pairwise

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Pictures

from saliency_bench.studies.annotating import open_study
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.exporting import read_masks, store_masks
from saliency_bench.studies.images import StudyImages

CHROMIUM = "/usr/bin/chromium"
BOX = np.zeros((60, 80), bool)
BOX[10:30, 5:25] = True  # the known masks of `dataset`


def dataset(count, size=(60, 80), masks=0, seed=0):
    """Write a dataset of noise images with these (height, width); the first `masks` images have a mask."""
    random = np.random.default_rng(seed)
    rows = {"image_id": [], "image": [], "label": [], "mask": []}
    for index in range(count):
        rows["image_id"].append(f"image-{index:03d}")
        rows["image"].append(Pictures.fromarray(random.integers(0, 255, (*size, 3), np.uint8)))
        rows["label"].append(index % 2)
        rows["mask"].append(Pictures.fromarray(BOX.astype(np.uint8) * 255) if index < masks else None)
    labels = ClassLabel(names=["<b>cat</b>", "dog"])
    kinds = {"image_id": Value("string"), "image": Image(), "label": labels, "mask": Image()}
    return Dataset.from_dict(rows, features=Features(kinds))


def study_of(folder, rows, **settings):
    """Create an annotation study in a folder with two people per image, from a dataset or a number of noise images."""
    images = StudyImages(dataset(rows) if isinstance(rows, int) else rows)
    folder.mkdir(exist_ok=True)
    return open_study(Store(folder / "study.db"), "noise", images, "print", **{"annotators": 2} | settings)


def answer_all(annotating, person, most=None, **answer):
    """Send an answer (default: "no region") for each image of a person, at most `most`, and return the images."""
    units = []
    while len(units) != most and (tasks := [one for one in annotating.state(person)["tasks"] if not one.get("again")]):
        units.append(tasks[0]["unit"])
        sent = {"unit": units[-1], "kind": "no_region", "request": f"{person} answers {units[-1]}"}
        annotating.save(person, sent | answer)
    return units


def client_of(app):
    from starlette.testclient import TestClient

    return TestClient(app, raise_server_exceptions=False)


def joined(client, request="r"):
    return {"X-Key": client.post("/api/join", json={"request": request.ljust(32, "-")}).json()["key"]}


class Command:
    """Run `saliency-bench` with these arguments at a fixed port, in a separate process that can be killed."""

    def __init__(self, *words):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = [*words, "--port", self.port, "--json"]
        self.line = [sys.executable, "-m", "saliency_bench", *map(str, words)]
        self.start()

    def start(self, *further):
        self.process = subprocess.Popen([*self.line, *further], stdout=subprocess.PIPE, text=True)
        self.links = json.loads(self.process.stdout.readline())
        self.url = next(iter(self.links.values()))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()

    def call(self, path, key="", body=None):
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, sent, {"X-Key": key})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer) if "json" in answer.headers["content-type"] else answer.read()

    def insist(self, path, key="", body=None):
        for _ in range(300):
            try:
                return self.call(path, key, body)
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise
            except (OSError, HTTPException):
                pass
            time.sleep(0.2)
        raise AssertionError("no answer")


class Served(Command):
    def __init__(self, folder, store, *options):
        super().__init__("annotate", "--dataset", folder, "--name", "study", "--store", store, *options)


@contextmanager
def serving(app, **options):
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(timeout=10)


@contextmanager
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
    with playwright.sync_playwright() as running:
        try:
            opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except playwright.Error:
            pytest.skip(f"needs chromium at {CHROMIUM}")
        yield opened
        opened.close()


def stroke(mask, points, diameter, value=True):
    """Draw on a bool mask: all pixels whose centre is within the radius of a segment, and the pixels of its ends."""
    height, width = mask.shape
    y, x = np.mgrid[:height, :width] + 0.5
    pairs = list(pairwise(points)) or [(points[0], points[0])]
    for (x0, y0), (x1, y1) in pairs:
        dx, dy = x1 - x0, y1 - y0
        length = dx * dx + dy * dy
        t = np.clip(((x - x0) * dx + (y - y0) * dy) / length, 0, 1) if length else np.zeros_like(x)
        mask[(x - x0 - t * dx) ** 2 + (y - y0 - t * dy) ** 2 <= (diameter / 2) ** 2] = value
        for px, py in ((x0, y0), (x1, y1)):
            if 0 <= px < width and 0 <= py < height:
                mask[int(py), int(px)] = value


def import_masks(annotating, path, format, person):
    """Read and store masks like `annotate --import`; return (number of images, names that match no image)."""
    imported = read_masks(annotating.images, path, format, person)
    store_masks(annotating, imported)
    return len(imported.masks), imported.strange
