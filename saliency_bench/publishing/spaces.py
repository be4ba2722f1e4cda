"""Publish an app as a Space with its card and requirements, a short `app.py`, and this version of the package.

Apps that do not use Gradio are Spaces with the SDK `docker`, which the Hub documents for any web server on a port. The
SDK `gradio` would install Gradio, which these apps do not need, and supports no other server. Docker Spaces check the
hash of every wheel (`spaces/requirements.txt`), except for torch, because its CPU build has a separate index. Gradio
Spaces cannot check hashes, because the Hub installs additional packages there.

The package is included, so that the same version writes the page and reads the results. Weights, images and tests are
not included.
"""

from pathlib import Path

from huggingface_hub import RepoCard

from saliency_bench import registry
from saliency_bench.errors import unknown
from saliency_bench.hub.upload_plan import Publication
from saliency_bench.publishing.package import TORCH, package_files, pinned, read_requirements

STUDY = "human-study"  # tag in the card of a study's page
DOCKERFILE = """FROM python:3.11-slim
RUN useradd --create-home --uid 1000 user
USER user
RUN mkdir /home/user/app
ENV PATH=/home/user/.local/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /home/user/app
COPY --chown=user requirements.txt .
RUN pip install --no-cache-dir --no-deps {torch}
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements.txt
COPY --chown=user . .
EXPOSE 7860
CMD ["python", "app.py"]
"""  # With CMD in exec form, the app receives the termination signal and can still send its last answers.
START = '''"""Start the app `{name}` of saliency-bench, which is in the same folder as this file."""

from saliency_bench.spaces.{name}.app import main

main()
'''


def list_spaces(*, studies: bool = True) -> dict[str, Path]:
    """Return {name: folder} of the apps that can be published.

    Args:
        studies: Whether to include the pages of human studies. They belong to the organiser of a study, not to the
            owner of a board.
    """
    folders = (path for folder in registry.folders("spaces") for path in sorted(folder.iterdir()))
    apps = {path.name: path for path in folders if (path / "app.py").is_file() and (path / "README.md").is_file()}
    return apps if studies else {name: path for name, path in apps.items() if STUDY not in (_tags(path))}


def _tags(folder: Path) -> list[str]:
    return RepoCard((folder / "README.md").read_text(encoding="utf-8")).data.get("tags") or []


def space_publication(name: str, namespace: str, repo_name: str | None = None) -> Publication:
    """Return the files of an app's Space `namespace`/`repo_name`. The default of `repo_name` is the app's name.

    Raises:
        UserError: The app is unknown.
    """
    known = list_spaces()
    if name not in known:
        raise unknown("space", name, known)
    card = RepoCard((known[name] / "README.md").read_text(encoding="utf-8"))
    sdk = str(card.data.get("sdk"))
    files: dict[str, Path | bytes] = {
        "README.md": (str(card).rstrip() + "\n").encode(),
        "app.py": START.format(name=name).encode(),
        **package_files(),
    }
    if sdk == "docker":
        files["requirements.txt"] = known[name].parent / "requirements.txt"
        files["Dockerfile"] = DOCKERFILE.format(torch=" ".join(pinned(TORCH).split())).encode()
    else:
        files["requirements.txt"] = pinned(read_requirements(["spaces"])).encode()
    repo, mark = f"{namespace}/{repo_name or name}", f"saliency_bench/spaces/{name}/app.py"
    return Publication("space", repo, files, card.data.get("license"), ("saliency_bench/*",), mark=(mark, ""), sdk=sdk)
