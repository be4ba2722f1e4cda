"""Simulated studies: images whose classes are colours, maps of known quality, and workers who see only pixels.

The order of the maps is known: `good` shows the object first, `half` shows as much object as background, `noise` shows
the object in proportion to its area, and `bad` shows the object last.
"""

from io import BytesIO

import numpy as np
from PIL import Image

from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.assess import protocol as assessments
from saliency_bench.studies.assess.questions import read_questions
from saliency_bench.studies.peekaboom import protocol as games
from saliency_bench.studies.run_images import RunImages, pair_of
from saliency_bench.utils.seeds import random_bits, seed_of, uniform

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230), "yellow": (230, 220, 30),
           "cyan": (20, 210, 210)}  # fmt: skip
PLANTED = ["good", "half", "noise", "bad"]  # best first
SIZE = 20
ENOUGH = 30  # pixels of a colour that are needed to recognise it


def run_images(count=12, size=SIZE, explainers=PLANTED):
    names = list(COLOURS)
    ids = [f"secret {number}.jpg" for number in range(count)]
    labels = {one: names[number % len(names)] for number, one in enumerate(ids)}
    frames = {one: picture(one, COLOURS[labels[one]], size) for one in ids}
    maps = {name: {one: map_of(name, one, frames[one]) for one in ids} for name in explainers}
    groups = dict.fromkeys(ids)
    return RunImages("run", "fingerprint", ids, labels, groups, names, frames.__getitem__, maps, labels)


def picture(image_id, colour, size):
    bits = random_bits(seed_of("picture", image_id), size * size * 3)
    frame = (bits % np.uint64(60)).astype(np.uint8).reshape(size, size, 3)
    top, left = (seed_of(image_id, side) % (size // 2) for side in ("top", "left"))
    frame[top : top + size // 2, left : left + size // 2] = colour
    return frame


def map_of(name, image_id, frame):
    inside = frame.max(axis=2) > 100
    drawn = uniform(seed_of(name, image_id), inside.size).reshape(inside.shape)
    worth = {"good": inside, "half": drawn < np.where(inside, 0.45, 0.15), "noise": 0, "bad": ~inside}[name]
    return (worth + 0.5 * uniform(seed_of("order", image_id), inside.size).reshape(inside.shape)).astype(np.float32)


class Worker:
    """Worker who names the colour that is visible.

    Attributes:
        noise: Probability of a wrong label.
        careless: Whether the worker chooses labels at random.
    """

    def __init__(self, name, noise=0.05, careless=False):
        self.name, self.noise, self.careless, self.asked = name, noise, careless, 0

    def choose(self, png, state):
        """Return one of the remaining labels, or None, based only on the pixels."""
        left = [label for label in state["choices"] if not state["strike"] or label not in state["tried"]]
        self.asked += 1
        if self.careless or self.draw("noise") < self.noise:
            return left[int(self.draw("label") * len(left))]
        pixels = np.asarray(Image.open(BytesIO(png))).reshape(-1, 3)
        counts = {label: int((pixels == COLOURS[label]).all(axis=1).sum()) for label in left}
        best = max(counts, key=counts.get)
        return best if counts[best] >= ENOUGH else None

    def draw(self, what):
        return float(uniform(seed_of(self.name, what, self.asked), 1)[0])


def work(peekaboom, worker, most=None):
    """Let a worker join and answer all tasks, or at most `most`, and return the worker's pseudonym."""
    person = peekaboom.study.join().name
    answered = 0
    while (state := peekaboom.state(person))["place"] is not None and answered != most:
        png = peekaboom.picture(person, state["place"], state["step"])
        sent = {"place": state["place"], "step": state["step"], "choice": worker.choose(png, state), "seconds": 1.5}
        peekaboom.save(person, sent)
        answered += 1
    return person


QUESTIONS = ["complete", "precise", "convincing"]


def start_peekaboom(folder, images, **options):
    settings = games.configuration(images, **options)
    store = Store(folder / "study.db")
    return games.Peekaboom(store.study(games.KIND, "s", dataset="d", configuration=settings), images)


def start_assess(folder, images, **options):
    settings = assessments.configuration(images, read_questions(), **options)
    return assessments.Assess(Store(folder / "study.db").study(assessments.KIND, "s", configuration=settings), images)


def rate(study, person, rating, most=None):
    """Rate all maps, or at most `most`, with `rating(image, explainer, question)`, and return the pseudonym."""
    done = 0
    while (maps := study.state(person)["maps"]) and done != most:
        for one in maps:
            if one["ratings"] is None and done != most:
                done += 1
                image, explainer = pair_of(unit_at(study, person, one["place"]))
                ratings = {name: rating(image, explainer, name) for name in QUESTIONS}
                request = f"a random text of 16 characters and more {one['place']}"
                study.save(person, {"place": one["place"], "ratings": ratings, "request": request, "seconds": 2})
    return person


def unit_at(study, person, place):
    return next(one.unit for one in study.study.assignments(person) if one.position == place)
