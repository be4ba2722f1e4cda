"""Starlette application that serves the peek-a-boom page.

The page receives only the pixels and labels of the current question. URLs do not contain names of images or
explainers. A question is identified by its position in the person's order.
"""

from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response

from saliency_bench.errors import UserError
from saliency_bench.spaces.pages import on_a_space
from saliency_bench.spaces.pages.serving import SAFE, application, ending, stopping, whole_number
from saliency_bench.studies.attention_checks import failed
from saliency_bench.studies.introduction import Introduction
from saliency_bench.studies.overview import overview
from saliency_bench.studies.owner_actions import excluded, stopped
from saliency_bench.studies.peekaboom.protocol import Peekaboom
from saliency_bench.studies.peekaboom.results import judged
from saliency_bench.studies.study import Person

HERE = Path(__file__).parent


def create_app(
    peekaboom: Peekaboom, *, completion: dict[str, str] | None = None, introduction: Introduction | None = None
) -> Starlette:
    """Return the application for a study.

    Args:
        peekaboom: The study.
        completion: Code or link that people get when they finish (see `serving.ending`).
        introduction: Consent form and instructions, which people see first.
    """

    def state(person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        about = {"study": peekaboom.study.name, "person": person.name}
        if stop := stopped(peekaboom.study, person.name):
            return about | {"place": None} | stopping(stop, peekaboom.lease_hours, completion)
        now = peekaboom.state(person.name)
        finished = now["place"] is None and now["total"] > 0
        return about | now | ending(peekaboom.lease_hours, finished, completion)

    def picture(person: Person, sent: dict[str, Any]) -> Response:
        if sent.keys() != {"place", "step"}:
            raise UserError(
                "the image URL must have exactly two parameters: place (the image's position in your list) and step"
            )
        place_and_step = (whole_number(sent[name]) for name in ("place", "step"))
        return Response(peekaboom.picture(person.name, *place_and_step), media_type="image/png", headers=SAFE)

    def answer(person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        return peekaboom.save(person.name, sent) | {"state": state(person, {})}

    def for_owner(person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        stored, settings = judged(peekaboom.study), peekaboom.study.configuration
        wanted = settings["judgements"] * len(settings["images"]) * len(settings["explainers"])
        without = {*excluded(peekaboom.study), *failed(stored.checks)}
        counted = list(stored.without(without)["created"])
        done = min(len(counted), wanted)
        return overview(peekaboom.study, done, wanted, counted, stored.checks, peekaboom.lease_hours, needed=1)

    get = {"state": state, "picture": picture}
    return application(
        peekaboom.study, HERE, get, {"answer": answer}, introduction=introduction, owner={"overview": for_owner}
    )


def main() -> None:
    """Serve the study that the environment variables of the Space define."""
    on_a_space.main("peekaboom")
