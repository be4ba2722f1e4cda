"""The rooms at the top of the repository are installed as sub-packages of `saliency_bench`."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOMS = ("explainers", "metrics", "hub_builders", "model_cards", "push_scripts", "spaces")

package_dir = {"saliency_bench": "saliency_bench"}
packages = ["saliency_bench"]
for room in filter(lambda room: Path(room).is_dir(), ROOMS):
    package_dir[f"saliency_bench.{room}"] = room
    below = find_namespace_packages(room, exclude=["__pycache__", "*.__pycache__"])
    packages += [f"saliency_bench.{room}", *(f"saliency_bench.{room}.{name}" for name in below)]

setup(
    packages=packages,
    package_dir=package_dir,
    package_data={"": ["*.md", "*.j2", "*.css", "*.json", "*.txt", "py.typed"]},
)
