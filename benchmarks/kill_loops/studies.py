"""Kill the process that stores people's answers, or the database itself.

Each answer must be stored exactly once. After any kill, every confirmed answer exists, and each unconfirmed answer
exists completely or not at all. After all answers have been sent again, each exists once, as in an undisturbed store.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from children import Children

from kill_loops.common import Outcome, at_once, bad_luck, working_in

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from postgres import Postgres

PEOPLE, UNITS = 4, 12
CONFIRMED = Path("confirmed")  # contains one line for each answer that `record` has stored


def answer_all(address: str) -> None:
    """Let every person answer every unit in a child process, some of them twice. Send earlier answers again."""
    os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.events import add_event

    store = Store(address)
    study = store.study("annotate", "shapes", dataset="none", configuration={"annotators": PEOPLE}, seed=0)
    confirmed = os.open(CONFIRMED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for person in range(PEOPLE):
        name = study.join(f"a request to join of person {person}").name
        add_event(study, "consent", {"text": "yes"}, person=name, request="consent")
        study.assign(name, [f"unit {unit}" for unit in range(UNITS)])
        for unit in range(UNITS):
            for revision in range(1 + unit % 2):
                request = f"a request of {person} {unit} {revision}"
                mask = np.random.default_rng([person, unit, revision]).random((8, 8)) > 0.5
                study.record(name, f"unit {unit}", request, {"revision": revision}, mask=mask, seconds=1.0)
                os.write(confirmed, f"{request}\n".encode())
                time.sleep(0.005)  # gives a busy parent the time to kill this process before its end
    store.close()


def stored(address: str) -> dict[str, list[tuple]]:
    """Return the content of a study, leaving out times and pseudonyms."""
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.events import events_of

    store = Store(address)
    try:
        study = store.find()
        numbers = {name: number for number, name in enumerate(study.people())}
        return {
            "answers": [
                (numbers[answer.person], answer.unit, answer.revision, answer.payload, answer.mask)
                for answer in study.answers(last=False)
            ],
            "assignments": [(numbers[given.person], given.unit, given.position) for given in study.assignments()],
            "events": [
                (event.kind, numbers[str(event.person)], event.payload) for event in events_of(study, "consent")
            ],
        }
    finally:
        store.close()


def confirmations() -> list[str]:
    """Return the requests in the order of their confirmations, including repeated requests."""
    return CONFIRMED.read_text().splitlines() if CONFIRMED.exists() else []


def confirmed() -> int:
    """Return the number of distinct confirmed answers."""
    return len(set(confirmations()))


def in_sqlite(count: int, folder: Path, children: Children) -> Outcome:
    return studies(count, folder, children, lambda name: str(Path("study.db").absolute()))


def in_postgres(count: int, folder: Path, children: Children) -> Outcome:
    with Postgres() as server:
        return studies(count, folder, children, server.create, server.crash)


def studies(
    count: int, folder: Path, children: Children, new: Callable[[str], str], restart: Callable[[], None] | None = None
) -> Outcome:
    """Kill the process of the study, or its database.

    `new(name)` returns the location of an empty database. `restart` kills the database and starts it again.
    """
    outcome = Outcome("studies in PostgreSQL" if restart else "studies in SQLite", count)
    with working_in(folder / f"undisturbed {outcome.what}"):
        address = new("undisturbed")
        children.to_the_end(answer_all, {"address": address})
        expected = stored(address)
    for number in range(count):
        dice = random.Random(number)
        with working_in(folder / f"{outcome.what} {number}"):
            given = {"address": (address := new(f"study_{number}"))}
            for start in range(bad_luck(number)):
                enough = len(confirmations()) + dice.randrange(1, 12)
                moment = at_once if start == 0 else lambda enough=enough: len(confirmations()) >= enough
                server = restart is not None and start % 3 == 1
                if server:
                    child = children.start(answer_all, given)
                    while child.is_alive() and not moment():
                        time.sleep(0.001)
                    restart()
                    child.join()
                    outcome.kills["of the database"] += 1
                elif children.killed_at(moment, dice.uniform(0, 0.01 if start else 0.3), answer_all, given):
                    outcome.kills["while answering" if confirmed() else "at the start"] += 1
                if confirmed() > (there := len(stored(address)["answers"]) if confirmed() else 0):
                    outcome.differing.append(f"{outcome.what} {number}: {confirmed() - there} answers lost")
            children.to_the_end(answer_all, given)
            answers_there = stored(address)
            wrong = [name for name in expected if answers_there[name] != expected[name]]
            if wrong:
                outcome.differing.append(f"{outcome.what} {number}: {', '.join(wrong)}")
    return outcome
