"""`suite --within`: how many images of each run a time allows, and the passes in which they are scored."""

import pytest

from saliency_bench.errors import UserError
from saliency_bench.recipes.suites.costs import Cost, Speed
from saliency_bench.recipes.suites.jobs import Job
from saliency_bench.recipes.suites.plan import Step
from saliency_bench.recipes.suites.within import Passes, check_enough, check_timed, most_images, seconds_on
from saliency_bench.spec import RunSpec

SPEED = Speed(*[(1.0,) * 3] * 5, memory=10)  # a second for each image, however it goes through the network
SETTINGS = {"dataset": "shapes", "model": "small", "explainers": ["random"], "metrics": ["saliency_miou"]}


def step(folder, images, per_image, trained=0, used=0):
    image, once = Cost(forward=per_image), Cost(trained=trained)
    cost = once + image.times(images - used)
    job = Job("all", "shapes", "small", RunSpec.read(SETTINGS | {"out": folder}))
    return Step(job, "there", "there", images, 1, 0, cost, SPEED.seconds(cost), speed=SPEED, used=used, image=image,
                once=once)  # fmt: skip


STEPS = [step("a", 100, 2, trained=50), step("b", 30, 5, used=10), step("c", 0, 1)]


def test_as_many_images_of_each_run_as_the_time_allows():
    """Count by hand, on n images: 50 + 2n of the first run; 5 (n - 10) of the second, 0 at least and 100 at most."""
    assert [seconds_on(STEPS, images) for images in (0, 10, 20, 30, 100)] == [50, 70, 140, 210, 350]
    assert [most_images(STEPS, seconds) for seconds in (49, 52, 70, 139, 140, 211, 350, 1000)] == [
        0, 1, 10, 19, 20, 30, 100, 100,
    ]  # fmt: skip
    limited = [item.up_to(20) for item in STEPS]
    assert [(item.images, item.job.spec.limit) for item in limited] == [(20, 20), (20, 20), (0, None)]
    assert STEPS[1].up_to(3).job.spec.limit == 10  # what is there is not taken from the table
    assert STEPS[0].up_to(100) is STEPS[0]
    rest = STEPS[0].beyond(20)
    assert (rest.used, rest.cost.counts, rest.up_to(60).seconds) == (20, Cost(forward=160).counts, (80.0,) * 3)


def test_too_little_time_and_what_cannot_be_timed_are_one_line():
    assert check_enough(STEPS, 60, 52) == 1
    with pytest.raises(UserError, match=r"--within 60.0 s is too little: the plan took 9.0 s, .* take about 52.0 s;"):
        check_enough(STEPS, 60, 51)
    check_timed(STEPS)
    with pytest.raises(UserError, match=r"how long c takes, as its network .* is not on this machine"):
        check_timed([*STEPS[:2], Step(STEPS[2].job, "there", "missing", 5, 1, 0, Cost(forward=5))])


def test_the_first_pass_shows_the_pace_and_the_next_take_the_time_that_is_left():
    """Count by hand: of 450 s, 50 + 100 for the first pass; it takes 300, twice the plan, and 150 s are left."""
    now = [1000.0]
    passes = Passes(450, clock=lambda: now[0])
    steps = [step("a", 100, 1, trained=50), step("b", 1000, 1)]
    assert passes.next_images(steps) == 50
    now[0] += 300
    steps = [item.beyond(50) for item in steps]
    assert passes.next_images(steps) == 50 + 37  # 75 s of planned work for two runs
    now[0] += 148
    assert passes.next_images([item.beyond(87) for item in steps]) == 0


@pytest.mark.parametrize(("late", "images"), [(10, 100), (5000, 0)])
def test_passes_end_with_the_images_and_with_the_time(late, images):
    now = [0.0]
    passes = Passes(360, clock=lambda: now[0])
    steps = [step("a", 100, 1)]
    assert passes.next_images(steps) == 90
    now[0] += late
    steps = [item.beyond(90) for item in steps]
    assert passes.next_images(steps) == images  # the last few are worth a pass of their own
    now[0] += 1
    assert passes.next_images([item.beyond(100) for item in steps]) == 0
