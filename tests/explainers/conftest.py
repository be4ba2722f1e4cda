"""What the tests over all explainers have in common."""

import re

import pytest

from saliency_bench import load_explainer, options, rooms
from saliency_bench.errors import UserError

# Options that say how much is computed, for any explainer that has them.
FEW = {"steps": 3, "samples": 20, "masks": 60, "window": 8, "stride": 4}


@pytest.fixture
def explainer_of():
    """name -> the explainer with little to compute."""

    def cheap(name):
        known = options.defaults(getattr(rooms.load("explainers", name), name))
        return load_explainer(name, **{key: value for key, value in FEW.items() if key in known})

    return cheap


@pytest.fixture
def map_or_refusal():
    """(maps, None), or (None, the words of a UserError): anything else is raised."""

    def attempt(explainer, classifier, images, target):
        try:
            return explainer(classifier, images, target), None
        except UserError as error:
            return None, str(error)

    return attempt


@pytest.fixture
def others_named():
    """The explainers, other than the one that speaks, that a refusal of one line names."""

    def others(refusal, name):
        assert "\n" not in refusal
        return set(re.findall(r"\w+", refusal)) & set(rooms.names("explainers")) - {name}

    return others
