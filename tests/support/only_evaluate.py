"""Provide an environment with evaluate but without saliency_bench."""

import importlib.metadata

import pytest
from packaging.requirements import Requirement


def required(name, found):
    """Return the installed distributions that `name` requires, including itself."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return found
    if distribution.metadata["Name"].lower() not in found:
        found[distribution.metadata["Name"].lower()] = distribution
        for line in distribution.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                required(requirement.name, found)
    return found


@pytest.fixture(scope="module")
def only_evaluate(tmp_path_factory):
    """Return a folder with links to evaluate and its requirements only, without torch and saliency_bench."""
    folder = tmp_path_factory.mktemp("site")
    for distribution in required("evaluate", {}).values():
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    return folder
