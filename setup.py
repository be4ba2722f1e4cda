"""Install the plugin folders at the top of the repository as sub-packages of `saliency_bench`."""

import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup
from setuptools.command.editable_wheel import editable_wheel

PLUGINS = ("explainers", "metrics", "hub_builders", "model_cards", "push_scripts", "spaces", "suites")


class EditableWheel(editable_wheel):
    """Editable installation by a line in a `.pth` file, which type checkers and editors can follow.

    If the plugin folders were mapped to sub-packages, setuptools would write an import hook, which these tools cannot
    follow. In a checkout, the package finds its plugin folders itself.
    """

    def finalize_options(self) -> None:
        """Leave out the plugin folders, so that the path of every package matches its name."""
        self.distribution.packages, self.distribution.package_dir = core, {"": "."}
        super().finalize_options()


core = ["saliency_bench", *(f"saliency_bench.{name}" for name in find_packages("saliency_bench"))]
package_dir, packages = {"saliency_bench": "saliency_bench"}, list(core)
for folder in filter(lambda folder: Path(folder).is_dir(), PLUGINS):
    package_dir[f"saliency_bench.{folder}"] = folder
    below = find_namespace_packages(folder, exclude=["__pycache__", "*.__pycache__"])
    packages += [f"saliency_bench.{folder}", *(f"saliency_bench.{folder}.{name}" for name in below)]


def package_page() -> str:
    """Return the README for the package's page on PyPI, with absolute URLs for links within the repository."""
    urls = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    address = {"": f"{urls['Repository']}/blob/main/", "!": f"{urls['Repository']}/raw/main/"}  # "!" marks images
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
