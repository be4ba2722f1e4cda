"""Publish a metric as a Space, from which `evaluate.load("NAMESPACE/NAME")` loads it. The Space's page is a demo."""

import re
from pathlib import Path

from huggingface_hub import RepoCard

from saliency_bench import registry
from saliency_bench.bound_metric import registered_metric
from saliency_bench.errors import UserError
from saliency_bench.hub.upload_plan import Publication
from saliency_bench.publishing.package import with_wheel
from saliency_bench.publishing.vendoring import metric_files

LICENSE = "apache-2.0"  # licence of this package, because a metric's Space contains code of this package
CARD, REQUIREMENTS = "README.md", "requirements.txt"
OWN_FILE = re.compile(r"\.py:\w+")  # ./my_score.py:my_iou
PYTHON = "3.11"  # the default Python of a Space is older than this package requires


def card_of(name: str) -> str:
    """Return a metric's card, including the declared description and citation."""
    card = RepoCard((registry.files("metrics")[name].parent / CARD).read_text(encoding="utf-8"))
    card.data["description"] = registry.summary(registry.score_file("metrics", name))
    paper = registered_metric(name).declaration.paper
    if not paper:
        return str(card)
    citation = f"```bibtex\n{paper}\n```" if paper.startswith("@") else paper
    return str(card).replace("\n## Further references", f"\n## Citation\n\n{citation}\n\n## Further references")


def check_publishable(name: str) -> None:
    """Raise UserError if a metric is a function in a user's file, or if it lacks a card or a list of requirements."""
    if OWN_FILE.search(name):
        raise UserError(
            f"{name} is a function in a file, but a published metric is a folder with NAME.py, score.py, README.md and "
            "requirements.txt; create it with `saliency-bench new metric` in a checkout, or in your own package (see "
            "examples/plugin), and pass its NAME"
        )
    if name in (known := registry.files("metrics")):
        folder = known[name].parent
        if missing := [file for file in (CARD, REQUIREMENTS) if not (folder / file).is_file()]:
            raise UserError(
                f"metric {name} has no {' and no '.join(missing)}; add what is missing to {folder}, as "
                "`saliency-bench new metric` does in a checkout, and install the package again"
            )


def metric_publication(name: str, namespace: str) -> Publication:
    """Return the files of a metric's Space: card, requirements, page, main script, and the modules that it imports.

    Raises:
        UserError: The metric is unknown, or lacks a file that a Space needs.
    """
    check_publishable(name)
    texts = metric_files(name)
    card = RepoCard(card_of(name))
    license = card.data.get("license") or LICENSE
    card.data["license"] = license
    card.data["python_version"] = PYTHON
    text = str(card).replace(f'"saliency-bench/{name}"', f'"{namespace}/{name}"').rstrip() + "\n"
    repo = f"{namespace}/{name}"
    needed, package = with_wheel(texts[REQUIREMENTS], repo)
    texts |= {CARD: text, REQUIREMENTS: needed}
    files: dict[str, Path | bytes] = {path: content.encode() for path, content in texts.items()}
    files.update(package)
    return Publication("space", repo, files, license, ("*.py", "*.whl"), mark=(f"{name}.py", ""))
