"""The plugin folders at the top of the repository are installed as sub-packages of `saliency_bench`."""

from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

PLUGINS = ("explainers", "metrics", "hub_builders", "model_cards", "push_scripts", "spaces", "suites")

package_dir = {"saliency_bench": "saliency_bench"}
packages = ["saliency_bench", *(f"saliency_bench.{name}" for name in find_packages("saliency_bench"))]
for folder in filter(lambda folder: Path(folder).is_dir(), PLUGINS):
    package_dir[f"saliency_bench.{folder}"] = folder
    below = find_namespace_packages(folder, exclude=["__pycache__", "*.__pycache__"])
    packages += [f"saliency_bench.{folder}", *(f"saliency_bench.{folder}.{name}" for name in below)]

setup(
    packages=packages,
    package_dir=package_dir,
    package_data={"": ["*.md", "*.j2", "*.css", "*.html", "*.js", "*.json", "*.txt", "*.yaml", "py.typed"]},
)
