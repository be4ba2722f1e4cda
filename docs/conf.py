"""Sphinx configuration of the documentation. `make docs` builds it into docs/_build/html without network access."""

import shutil
import sys
from pathlib import Path

import saliency_bench
from saliency_bench import registry
from saliency_bench.publishing.metrics import card_of

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import google_style
from pages import datasets, explainers, metrics, papers

project = "saliency-bench"
author = "the saliency-bench authors"
version = release = saliency_bench.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # notebooks are stored with their output
exclude_patterns = ["_build", "generated"]

html_theme = "furo"
html_title = f"saliency-bench {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
templates_path: list[str] = []

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

nitpicky = True
# Types without a page: types of other packages, because inventories are not downloaded, and internal types.
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|PIL|torch|datasets|pathlib|collections)\..*"),
    ("py:class", r"saliency_bench\..*"),
    ("py:class", r"Maps|Averaged"),  # from unevaluated annotations
]
autodoc_typehints = "none"  # keeps signatures short; types of other packages have no page
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"  # `name` in docstrings is code, as in Markdown

linkcheck_timeout = 20
linkcheck_anchors = False

CARDS = Path(__file__).parent / "metric_cards"
NOTEBOOKS = Path(__file__).parent / "notebooks"  # copies of the notebooks of the repository
GENERATED = Path(__file__).parent / "generated"  # parts of pages generated from the code


def setup(app) -> None:
    app.connect("builder-inited", lambda _: write_cards())
    app.connect("builder-inited", write_generated)
    app.connect("builder-inited", lambda _: copy_notebooks())
    app.connect("autodoc-process-docstring", google_style, priority=400)  # before napoleon


def write_generated(app) -> None:
    """Write the generated parts of pages.

    With the tag `pictures` (`-t pictures`), small networks are trained, and the pages of explainers and metrics show
    maps.
    """
    GENERATED.mkdir(exist_ok=True)
    models = GENERATED / "models" if app.tags.has("pictures") else None
    datasets.write(GENERATED)
    explainers.write(GENERATED, models)
    papers.write(GENERATED)
    if models is not None:
        metrics.write(CARDS, models)


def write_cards() -> None:
    """Write a page for each metric: its card, without the settings of its Space."""
    CARDS.mkdir(exist_ok=True)
    for name in registry.files("metrics"):
        text = card_of(name).split("---\n", 2)[2]
        page = text.replace(f"# Metric card: {name}", f"# {name}", 1).lstrip()
        target = CARDS / f"{name}.md"
        if not target.exists() or target.read_text(encoding="utf-8") != page:
            target.write_text(page, encoding="utf-8")


def copy_notebooks() -> None:
    """Copy the notebooks into the source folder, because Sphinx does not read files outside of it."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for notebook in (Path(__file__).parents[1] / "notebooks").glob("*.ipynb"):
        shutil.copy2(notebook, NOTEBOOKS)
