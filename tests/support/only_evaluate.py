"""Where evaluate is installed, and nothing of ours."""

import importlib.metadata

import pytest
from packaging.requirements import Requirement


def required(name, found):
    """The installed distributions that `name` needs, itself included."""
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
    """A folder with links to evaluate, what it needs, and nothing else: no torch, nothing of ours."""
    folder = tmp_path_factory.mktemp("site")
    for distribution in required("evaluate", {}).values():
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    return folder
