"""Tables of devices, what a plan takes on each of them, and the time left of a running suite."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from saliency_bench.errors import UserError
from saliency_bench.recipes.suites.costs import Cost, Speed
from saliency_bench.recipes.suites.device_table import (
    device_rows,
    extend_devices,
    hours_on,
    read_devices,
    speeds_on,
    works_on,
)
from saliency_bench.recipes.suites.own_work import OwnWork
from saliency_bench.recipes.suites.plan import Step
from saliency_bench.recipes.suites.time_left import TimeLeft

SPEED = Speed(prepare=(0.0, 0.5, 1.0), forward=(1.0, 1.0, 2.0), gradient=(3.0,) * 3, trained=(4.0,) * 3,
              step=(0.0,) * 3, memory=10)  # fmt: skip
KEY = ("microsoft/resnet-18", 224, 16)


def step(folder, cost, trainings=None, model=KEY[0], speed=None):
    spec = SimpleNamespace(model=model, batch_size=16, out=folder)
    job = SimpleNamespace(networks=(), spec=spec, folder=Path(folder))
    return Step(job, "there", "there", 10, 1, 0, cost, speed=speed, trainings=trainings or {})


def test_a_table_of_devices_is_extended_and_keeps_what_is_written_by_hand(tmp_path):
    path = tmp_path / "devices.csv"
    assert read_devices(path) == []
    extend_devices(path, "cpu, 2 cores", {KEY: SPEED, ("untimed", 224, 16): None})
    path.write_text(path.read_text().replace("10,,,\n", "10,1.50 EUR,,\n"))
    rows = extend_devices(path, "H100", {KEY: replace(SPEED, forward=(0.1,) * 3, memory=None)})
    assert rows[:1] == read_devices(path)[:1]
    assert [(row.device, row.key, row.price) for row in rows] == [("cpu, 2 cores", KEY, "1.50 EUR"), ("H100", KEY, "")]
    assert speeds_on(read_devices(path), "cpu, 2 cores")[KEY].seconds(Cost(images=2, forward=3)) == (4.0, 4.0, 4.0)
    before = path.read_bytes()
    extend_devices(path, "H100", {KEY: SPEED})  # known already
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change", [("1,3,4", "fast,3,4"), ("gradient", "grad"), ("1,3,4", "-1,3,4"), ("10,", "10,dear")]
)
def test_what_is_no_table_of_devices_is_one_line(change, tmp_path):
    path = tmp_path / "devices.csv"
    extend_devices(path, "cpu", {KEY: SPEED})
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(UserError, match="is no table of devices"):
        read_devices(path)


def test_a_plan_has_hours_and_the_price_of_each_device(tmp_path):
    path = tmp_path / "devices.csv"
    rows = extend_devices(path, "cpu", {KEY: SPEED})
    rows = [*rows, replace(rows[0], device="H100", price="2 EUR", speed=replace(SPEED, forward=(0.1,) * 3))]
    steps = [step("a", Cost(forward=36000)), step("b", Cost(forward=18000)), step("c", Cost(), model="other"),
             step("d", Cost(forward=1), model="other"), step("e", None)]  # fmt: skip
    # 54,000 images of 1 s and of 0.1 s; the run of another network and the one that is not counted are left out.
    assert device_rows(steps, rows)[1:] == [["cpu", "15.0", "–", "2"], ["H100", "1.5", "3.00 EUR", "2"]]
    assert hours_on(steps[0], rows) == {"cpu": 10.0, "H100": 1.0}
    assert hours_on(steps[3], rows) == hours_on(steps[4], rows) == {"cpu": None, "H100": None}


def test_a_table_of_devices_has_what_maps_and_scores_take_beside_their_passes(tmp_path):
    """Count by hand: 3,600 passes of 1 s and as many maps of 0.5 s."""
    path, work = tmp_path / "devices.csv", OwnWork({"rise:masks=9": 0.5, "saliency_miou": 0.0}, {"rise:masks=9": 7})
    rows = extend_devices(path, "cpu", {KEY: SPEED}, {KEY: work, ("untimed", 224, 16): OwnWork({"rise": 1.0})})
    assert works_on(rows, "cpu") == works_on(read_devices(path), "cpu") == {KEY: work}
    cost = Cost(forward=3600, made=Counter({"rise:masks=9": 3600, "of no table": 5}))
    assert hours_on(step("a", cost), rows) == {"cpu": 1.5}
    assert device_rows([step("a", cost)], rows)[1] == ["cpu", "1.5", "–", "0"]
    rows = extend_devices(path, "cpu", {}, {KEY: OwnWork({"saliency_mcs": 1.0})})  # what was known stays
    assert works_on(read_devices(path), "cpu")[KEY].times == {**work.times, "saliency_mcs": 1.0}
    for wrong in ("7,,rise:masks=9,long", "7,2 EUR,rise:masks=9,0.5"):
        changed = tmp_path / "changed.csv"
        changed.write_text(path.read_text().replace("7,,rise:masks=9,0.5", wrong))
        with pytest.raises(UserError, match="is no table of devices"):
            read_devices(changed)


def test_the_time_left_follows_the_clock():
    """Weights by hand: a network of 300 passes, runs of 100 and 600, of which the last is done."""
    now = [0.0]
    network = Path("network")
    steps = [step("a", Cost(forward=100, trained=100, networks=1), {network: Cost(trained=100, networks=1)}),
             step("b", Cost(gradient=200)), step("c", Cost())]  # fmt: skip
    left = TimeLeft.of_plan(steps, clock=lambda: now[0])
    assert left.weights == {network: 300, Path("a"): 100, Path("b"): 600, Path("c"): 0}
    assert (left.seconds, str(left)) == (None, "")
    now[0] = 60.0
    left.finish(network)
    assert left.seconds == pytest.approx(700 * 60 / 300)
    assert str(left) == "; about 2 min left"
    left.finish(Path("a"))
    now[0] = 80.0
    assert left.seconds == pytest.approx(600 * 80 / 400)
    left.keep({Path("c")})
    assert (left.seconds, str(left)) == (0.0, "")


def test_the_time_left_begins_with_the_prediction_and_is_corrected():
    now = [0.0]
    steps = [step("a", Cost(forward=1000), speed=SPEED), step("b", Cost(forward=9000), speed=SPEED)]
    left = TimeLeft.of_plan(steps, clock=lambda: now[0])
    assert left.seconds == pytest.approx(10000)
    assert str(left) == "; about 2.8 h left"
    now[0] = 2000.0  # twice as long as predicted
    left.finish(Path("a"))
    assert left.seconds == pytest.approx(9000 * (2000 + 500) / (1000 + 500))  # 5 % of the whole are believed
    unknown = TimeLeft.of_plan([*steps, step("c", Cost(forward=5))], clock=lambda: 0.0)
    assert not unknown.in_seconds
