"""Run the commands of docs/studies.md from photographs to a table of scores, with simulated annotators.

example:
  python benchmarks/campaign.py --photos photos --masks masks --work /tmp/campaign

`photos` has a folder per class. `masks` has a PNG file per photograph, with the same name and the size of the upright
photograph. The file contains the region that the simulated people mark, with at least one pixel. The owner also has
the masks of `--honeypots` photographs. One person is careless and draws in the wrong place, one is a bot that
immediately marks everything, and one leaves after one image. The owner excludes people whom the page marks as careless
or quick, and the other people complete the remaining images. The script fails if these three people change the masks or
the agreement.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from saliency_bench.studies.runs import runs_of

LEASE = 0.2  # minutes


def command(*words: object) -> str:
    """Print and run a command, and return its output."""
    line = [str(word) for word in words]
    print("$ saliency-bench", *line, flush=True)
    done = subprocess.run([sys.executable, "-m", "saliency_bench", *line], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


class Page:
    """Client that sends the same requests as a person's browser."""

    def __init__(self, link: str):
        self.url, _, fragment = link.partition("#")
        self.url = self.url.removesuffix("owner")
        kind, _, value = fragment.partition("=")
        self.key = value if kind == "key" else self.call("join", {"request": value})["key"]

    def call(self, path: str, body: dict | None = None) -> dict:
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}api/{path}", sent, {"X-Key": getattr(self, "key", "")})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{path}: {error.read().decode()}") from None


def draw(truth: np.ndarray, kind: str, number: int) -> np.ndarray:
    """Return a person's mask: the object, moved by a few pixels (far away if careless), or the whole image if a bot."""
    if kind == "bot":
        return np.ones_like(truth)
    step = max(1, max(truth.shape) // 100)
    shift = ((number % 3 - 1) * step, (number // 3 % 3 - 1) * step)
    if kind == "careless":
        shift = tuple(side // 2 for side in truth.shape)
    drawn = np.roll(truth, shift, (0, 1))
    return drawn if drawn.any() else truth


def work(page: Page, masks: Path, kind: str, number: int) -> str:
    """Answer the questions as a person of this kind, and return the person's pseudonym."""
    state = page.call("state")
    for count in range(1, 10_000):
        if not state["tasks"] or (kind == "leaver" and count > 1):
            return state.get("person") or page.call("state")["person"]
        unit = state["tasks"][0]["unit"]
        truth = np.asarray(Image.open(masks / f"{Path(unit).stem}.png").convert("L")) > 0
        seconds = 0.5 if kind == "bot" else 20 + number
        answer = {"unit": unit, "kind": "mask", "runs": runs_of(draw(truth, kind, number)), "seconds": seconds}
        state = page.call("answer", answer | {"request": f"person {number} draws {unit}"})
    raise AssertionError("a person never finishes")


def campaign(photos: Path, masks: Path, folder: Path, people: int = 12, honeypots: int = 4, port: int = 7861) -> dict:
    """Run all steps in a new folder; return the report of the study, the excluded people, and the table of the run."""
    known, data, store = folder / "known", folder / "data", folder / "study.db"
    known.mkdir(parents=True)
    for path in sorted(masks.glob("*.png"))[:: max(1, len(list(masks.glob("*.png"))) // honeypots)][:honeypots]:
        shutil.copy(path, known)
    command("build", "folder", "--images", photos, "--masks", known, "--out", data)
    study = ["annotate", "--dataset", data, "--store", store, "--name", "campaign"]
    page = [*study, "--annotators", 3, "--honeypots", honeypots, "--honeypot-every", 3, "--lease", LEASE]
    page += ["--invite", people, "--owner", "--port", port, "--json"]
    line = [sys.executable, "-m", "saliency_bench", *map(str, page)]
    print("$ saliency-bench", *map(str, page), flush=True)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        try:
            links = json.loads(server.stdout.readline())
            owner = Page(links["owner"])
            spoilers = ("careless", "bot", "leaver")
            kinds = [*spoilers, *["good"] * (people - len(spoilers))]
            pages = [Page(links[f"invite {number}"]) for number in range(1, people + 1)]
            with ThreadPoolExecutor(people) as pool:
                names = list(pool.map(work, pages, [masks] * people, kinds, range(people)))
            marked = [
                row["person"] for row in owner.call("overview")["people"] if {"careless", "quick"} & {*row["marks"]}
            ]
            for name in marked:
                owner.call(
                    "act", {"action": "exclude", "person": name, "reason": "honeypots", "request": f"out {name}"}
                )
            time.sleep(60 * LEASE + 1)  # the images of the person who left are assigned to others
            for number in range(len(spoilers), people):
                work(pages[number], masks, "good", number)
        finally:
            server.terminate()
    report = json.loads(command(*study, "--report", "--json"))
    bad = [name for name, kind in zip(names, kinds, strict=True) if kind in ("careless", "bot")]
    assert sorted(marked) == sorted(bad), f"{bad} are careless or quick, but the page marks {marked}"
    others = json.loads(command(*study, "--report", "--json", "--exclude", *bad))
    assert report["agreement"] == others["agreement"], "excluded people change the agreement"
    assert report["images complete"] == report["images"], "some images are not finished"
    for out, further in (("my-data", []), ("without", ["--exclude", *bad])):
        command("build", "masks", "--dataset", data, "--annotations", store, "--rule", "majority", "--out",
                folder / out, *further)  # fmt: skip
    made, without = (sorted((folder / out).rglob("*.parquet")) for out in ("my-data", "without"))
    assert [path.read_bytes() for path in made] == [path.read_bytes() for path in without]
    save_model(folder / "model", sorted(path.name for path in photos.iterdir()))
    table = command("run", "--dataset", folder / "my-data", "--model", folder / "model", "--explainers", "gradient",
                    "random", "--metrics", "saliency_miou", "--device", "cpu", "--out", folder / "run")  # fmt: skip
    return {"report": report, "left out": dict(zip(bad, spoilers, strict=False)), "table": table}


def save_model(folder: Path, classes: list[str]) -> None:
    """Save a small network with random weights, in place of the owner's network."""
    from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

    names = {"id2label": dict(enumerate(classes)), "label2id": {name: index for index, name in enumerate(classes)}}
    small = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
    ResNetForImageClassification(ResNetConfig(**small, **names)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)


def main() -> None:
    """Run a campaign and print its report and table."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--photos", type=Path, required=True, metavar="DIR", help="photographs, one folder per class")
    parser.add_argument(
        "--masks", type=Path, required=True, metavar="DIR", help="masks of the regions that people mark"
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument("--people", type=int, default=12, metavar="N", help="number of people (default: 12)")
    parser.add_argument("--honeypots", type=int, default=4, metavar="N", help="number of honeypots (default: 4)")
    args = parser.parse_args()
    begun = time.perf_counter()
    if not any(args.masks.glob("*.png")):
        parser.error(f"{args.masks} contains no PNG files; pass a folder without class subfolders")
    done = campaign(args.photos, args.masks, args.work, args.people, args.honeypots)
    print(done["table"])
    print(json.dumps(done["report"]["agreement"]["IoU"]), f"excluded: {done['left out']}")
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
