"""The publication of a metric as a Space: `evaluate.load("NAMESPACE/NAME")` loads it, and its page is a demo."""

from pathlib import Path

from huggingface_hub import RepoCard

from saliency_bench import registry
from saliency_bench.bound_metric import registered_metric
from saliency_bench.hub.plan import Publication
from saliency_bench.publishing.package import with_wheel
from saliency_bench.publishing.vendoring import metric_files

LICENSE = "apache-2.0"  # of this package, whose code it is
PYTHON = "3.11"  # for Spaces; their default is older than this package requires


def card_of(name: str) -> str:
    """Return the card of a metric, with the description and the citation that the metric declares."""
    card = RepoCard((registry.files("metrics")[name].parent / "README.md").read_text(encoding="utf-8"))
    card.data["description"] = registry.summary(registry.score_file("metrics", name))
    paper = registered_metric(name).declaration.paper
    citation = f"```bibtex\n{paper}\n```" if paper.startswith("@") else paper
    return str(card).replace("\n## Further references", f"\n## Citation\n\n{citation}\n\n## Further references")


def metric_publication(name: str, namespace: str) -> Publication:
    """Return the self-contained files of a metric: card, requirements, page, script and the modules that it imports.

    Raises:
        UserError: The metric is unknown.
    """
    texts = metric_files(name)
    card = RepoCard(card_of(name))
    license = card.data.get("license") or LICENSE
    card.data["license"] = license
    card.data["python_version"] = PYTHON
    text = str(card).replace(f'"saliency-bench/{name}"', f'"{namespace}/{name}"').rstrip() + "\n"
    repo = f"{namespace}/{name}"
    needed, package = with_wheel(texts["requirements.txt"], repo)
    texts |= {"README.md": text, "requirements.txt": needed}
    files: dict[str, Path | bytes] = {path: content.encode() for path, content in texts.items()}
    files.update(package)
    return Publication("space", repo, files, license, ("*.py", "*.whl"), mark=(f"{name}.py", ""))
