"""Starlette application that serves the assessment page.

The page does not receive the names of explainers or images. A map is identified by its position in the person's order.
"""

from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response

from saliency_bench.errors import UserError
from saliency_bench.spaces.pages import on_a_space
from saliency_bench.spaces.pages.serving import SAFE, application, ending, stopping, whole_number
from saliency_bench.studies.assess.protocol import Assess
from saliency_bench.studies.assess.results import rated
from saliency_bench.studies.attention_checks import failed
from saliency_bench.studies.introduction import Introduction
from saliency_bench.studies.overview import overview
from saliency_bench.studies.owner_actions import excluded, stopped
from saliency_bench.studies.study import Person

HERE = Path(__file__).parent


def create_app(
    assess: Assess, *, completion: dict[str, str] | None = None, introduction: Introduction | None = None
) -> Starlette:
    """Return the application for a study.

    Args:
        assess: The study.
        completion: Code or link that people get when they finish (see `serving.ending`).
        introduction: Consent form and instructions, which people see first.
    """

    def state(person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        about = {"study": assess.study.name, "person": person.name}
        if stop := stopped(assess.study, person.name):
            return about | {"maps": [], "scale": []} | stopping(stop, assess.lease_hours, completion)
        now = assess.state(person.name)
        finished = not now["maps"] and now["total"] > 0
        return about | now | ending(assess.lease_hours, finished, completion)

    def picture(plain: bool) -> Any:
        def method(person: Person, sent: dict[str, Any]) -> Response:
            if sent.keys() != {"place"}:
                raise UserError(
                    "the image URL must have exactly one parameter: place (the image's position in your list)"
                )
            png = assess.picture(person.name, whole_number(sent["place"]), plain=plain)
            return Response(png, media_type="image/png", headers=SAFE)

        return method

    def answer(person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        assess.save(person.name, sent)
        return {}

    def for_owner(person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        stored, settings = rated(assess.study), assess.study.configuration
        maps = len(settings["explainers"]) + settings["masks"]
        wanted = settings["raters"] * len(settings["images"]) * maps
        without = {*excluded(assess.study), *failed(stored.checks)}
        counted = list(stored.without(without)["created"])
        done = min(len(counted), wanted)
        return overview(assess.study, done, wanted, counted, stored.checks, assess.lease_hours, needed=1)

    get = {"state": state, "map": picture(plain=False), "image": picture(plain=True)}
    return application(
        assess.study, HERE, get, {"answer": answer}, introduction=introduction, owner={"overview": for_owner}
    )


def main() -> None:
    """Serve the study that the environment variables of the Space define."""
    on_a_space.main("assess")
