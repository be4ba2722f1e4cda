"""Run the notebooks in an empty folder and store their outputs: `python notebooks/store.py`.

Images are stored only as PNG or JPEG, which all Git hosts display, so that the files remain small.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in a folder and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def stored(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Remove standard error, execution times, all but the smallest format of each image, and the name of the folder."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            kept = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.outputs = [_without(output, f"{folder}/") for output in kept]
    return notebook


def _without(output: nbformat.NotebookNode, folder: str) -> nbformat.NotebookNode:
    if "text" in output:
        output.text = output.text.replace(folder, "")
    data = output.get("data", {})
    pictures = sorted((kind for kind in data if kind.startswith("image/")), key=lambda kind: len(data[kind]))
    for kind in [*pictures[1:], *(["text/html"] if pictures else [])]:
        data.pop(kind, None)
    for kind in data.keys() - set(pictures):
        data[kind] = data[kind].replace(folder, "")
    return output


def main(names: list[str]) -> None:
    for path in [HERE / name for name in names] or sorted(HERE.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            nbformat.write(stored(executed(path, Path(folder)), Path(folder)), path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
