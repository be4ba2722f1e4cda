"""The plugin folders at the top of the repository are installed as sub-packages of `saliency_bench`."""

import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup
from setuptools.command.editable_wheel import editable_wheel

PLUGINS = ("explainers", "metrics", "hub_builders", "model_cards", "push_scripts", "spaces", "suites")


class EditableWheel(editable_wheel):
    """Install the checkout as a line of a `.pth` file, which type checkers and editors follow.

    With the folders below mapped to sub-packages, setuptools would write an import hook, which they cannot. The package
    finds its plugin folders itself in a checkout.
    """

    def finalize_options(self) -> None:
        """Leave the plugin folders out: every package is then where its name says."""
        self.distribution.packages, self.distribution.package_dir = core, {"": "."}
        super().finalize_options()


core = ["saliency_bench", *(f"saliency_bench.{name}" for name in find_packages("saliency_bench"))]
package_dir, packages = {"saliency_bench": "saliency_bench"}, list(core)
for folder in filter(lambda folder: Path(folder).is_dir(), PLUGINS):
    package_dir[f"saliency_bench.{folder}"] = folder
    below = find_namespace_packages(folder, exclude=["__pycache__", "*.__pycache__"])
    packages += [f"saliency_bench.{folder}", *(f"saliency_bench.{folder}.{name}" for name in below)]


def package_page() -> str:
    """Return the README for the page of the package, where links within the repository lead nowhere."""
    urls = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    address = {"": f"{urls['Repository']}/blob/main/", "!": f"{urls['Repository']}/raw/main/"}  # "!": of pictures
    readme = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?)(\[[^]]*\]\()(?!https?:|#)", lambda link: f"{link[1]}{link[2]}{address[link[1]]}", readme)


setup(
    long_description=package_page(),
    long_description_content_type="text/markdown",
    packages=packages,
    package_dir=package_dir,
    package_data={"": ["*.md", "*.j2", "*.css", "*.html", "*.js", "*.json", "*.txt", "*.yaml", "py.typed"]},
    cmdclass={"editable_wheel": EditableWheel},
)
