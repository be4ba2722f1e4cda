"""Create a folder of hostile inputs: damaged runs, models, datasets and files, pipes and devices.

`PLACES` is {name: function that creates the input}. Every function writes the same bytes each time, so that changed
files can be recreated.
"""

import json
import os
import random
import shutil
import stat
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

NESTED = "[" * 100_000
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
SCALARS = {
    "merges.yaml": MERGES, "digits.yaml": "a: " + "9" * 6000, "hex.yaml": "a: 0x" + "f" * 6000,
    "day.yaml": "a: 2001-99-99", "tag.yaml": "a: !!timestamp x", "deep.yaml": "- " * 100_000 + "x",
    "cycle.yaml": "a: &a [*a]", "cut.yaml": "a: [",
}  # fmt: skip
TAGGED = "entries: !!python/object/apply:os.system ['touch owned']\n"
WEIRD_JSON = {
    "nested": NESTED,
    "nan": '{"a": NaN, "cells": -Infinity}',
    "digits": '{"cells": ' + "9" * 10_000 + "}",
    "surrogate": '{"dataset": "\\ud800", "cells": "\\u202e\\u001b[2J"}',
    "list": "[1, 2, 3]",
    "null": "null",
    "empty": "",
    "binary": "\x00\x01\x02",
    "cut": '{"cells": [{"metr',
    "twice": '{"disc": "cross", "cross": "star", "disc": "star"}',
    "member": '{"disc": ["disc", "disc", 0, 0]}',
    "types": '{"cells": {"a": {"n": "many"}}, "samples": [], "spec": 3, "identity": null, "format": "x"}',
}


def file(text: str | bytes, path: Path) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 * 10**9)


def device(path: Path) -> None:
    """Create a device like /dev/zero. If this is not permitted, create a link to /dev/zero."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except OSError:
        path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def full(path: Path) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("hello\n")


def picture(path: Path) -> None:
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(path)


def maps(path: Path) -> None:
    path.mkdir()
    np.save(path / "a.npy", np.zeros((32, 32)))


def tensors(kind: str, path: Path) -> None:
    """Write a folder with the map of an image as a malicious .pt file."""
    import torch

    path.mkdir()
    torch.save(torch.zeros(2, 3, device="meta") if kind == "meta" else torch.zeros(32, 32), path / "a.pt")
    if kind == "meta":
        return
    with zipfile.ZipFile(path / "a.pt") as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            is_pickle = name.endswith("data.pkl")
            if is_pickle and kind == "memo":
                content = b"\x80\x02Nr\xff\xff\xff\x7f."
            elif is_pickle and kind == "code":
                content = b"cos\nsystem\n(S'touch owned'\ntR."
            elif is_pickle and kind == "huge":
                content = content.replace(b"K K ", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f", 1)
            elif kind == "bomb" and name.endswith("/0"):
                content += bytes(3 * 10**8)
            packed.writestr(name, content)


def table(path: Path) -> None:
    pq.write_table(pa.table({"image_id": ["a", "a"], "value": [1.0, float("nan")]}), path)


def rows(kind: str, path: Path) -> None:
    """Write a dataset folder with one small table. Reading the table would crash the reader or need gigabytes."""
    path.mkdir()
    repeated = pa.table({"image_id": ["x" * 10**6] * 600})
    if kind == "parquet":
        pq.write_table(repeated, path / "test.parquet")
    elif kind == "arrow":
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(str(path / "test.arrow"), repeated.schema, options=options) as writer:
            writer.write_table(pa.concat_tables([repeated] * 5))
    else:
        (path / "test.jsonl").write_text('{"a":' + NESTED + "]" * len(NESTED) + "}")


def runs(path: Path) -> None:
    """Write COCO annotations with a damaged string of run lengths."""
    path.mkdir()
    image = {"id": 1, "file_name": "1.jpg", "height": 8, "width": 8}
    region = {"image_id": 1, "segmentation": {"size": [8, 8], "counts": "o" * 100}}
    (path / "annotations.json").write_text(json.dumps({"images": [image], "annotations": [region]}))


def copy(source: Path, path: Path) -> None:
    shutil.copytree(source, path, symlinks=True)


def damaged(source: Path, name: str, damage: Callable[[Path], None], path: Path) -> None:
    """Copy a folder and damage one of its files."""
    copy(source, path)
    damage(path / name)


def cut(share: float, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flipped(seed: int, path: Path) -> None:
    dice, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(20):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def replaced(make: Callable[[Path], object], path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)


def other_types(path: Path) -> None:
    """Rewrite a table with all columns as strings."""
    columns = {name: ["‮\x1b[2J"] * 3 for name in pq.read_schema(path).names}
    pq.write_table(pa.table(columns), path)


def texts(encoding: str, path: Path) -> None:
    """Rewrite a table as a file of less than 1 MB with 600 rows of 1 MB of text each."""
    text, schema = pa.array(["x" * 10**6]), pq.read_schema(path)
    rows = 600 if encoding == "dictionary" else 30
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), text)
    columns = {field.name: column if field.type == pa.string() else pa.nulls(rows, field.type) for field in schema}
    names = [field.name for field in schema if field.type == pa.string()] if encoding == "DELTA_BYTE_ARRAY" else []
    plain = pa.table(columns).cast(pa.schema([pa.field(field.name, field.type) for field in schema])) if names else None
    pq.write_table(plain or pa.table(columns), path, store_schema=False, use_dictionary=not names,
                   column_encoding=dict.fromkeys(names, encoding) or None)  # fmt: skip


def false_sizes(path: Path) -> None:
    """Change the size in the header of each page to a wrong value."""
    content = bytearray(path.read_bytes())
    about = pq.read_metadata(path)
    for group in map(about.row_group, range(about.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            content[column.data_page_offset + 3] |= 128  # sets the continuation bit of the size, the second field
    path.write_bytes(content)


def huge_header(path: Path) -> None:
    """Write a safetensors file that claims to have a header of 2^60 bytes."""
    path.write_bytes((2**60).to_bytes(8, "little") + b"{}")


def lying_tensors(path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def pickled(path: Path) -> None:
    """Write weights that would run a command when loaded."""
    path.unlink()
    path.with_name("pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")


OF_ANY = {"cut": partial(cut, 0.6), "empty": partial(cut, 0), "flipped": partial(flipped, 1),
          "pipe": partial(replaced, os.mkfifo), "loop": partial(replaced, loop),
          "folder": partial(replaced, Path.mkdir)}  # fmt: skip
OF_JSON = {name: partial(file, text) for name, text in WEIRD_JSON.items()}
OF_TABLE = {"types": other_types, "one column": partial(replaced, table), "sizes": false_sizes,
            "same text": partial(texts, "dictionary"), "prefixes": partial(texts, "DELTA_BYTE_ARRAY")}  # fmt: skip
OF_CARD = {"yaml": partial(file, f"---\n{LAUGHS}\n---\n")}
OF_WEIGHTS = {"header": huge_header, "lying": lying_tensors, "pickle": pickled}


def damages(name: str) -> dict[str, Callable[[Path], None]]:
    """Return {kind of damage: function} for a file with this name."""
    own = {".json": OF_JSON, ".parquet": OF_TABLE, ".safetensors": OF_WEIGHTS, ".md": OF_CARD}
    return OF_ANY | own.get(Path(name).suffix, {})


def wide(path: Path) -> None:
    """Write a checkpoint of 2 kB with a config that declares a last layer of 400 GB."""
    import torch

    torch.save({"fc.weight": torch.zeros(1).expand(2 * 10**8, 512)}, path)


def places(run: Path, model: Path, dataset: Path, template: Path) -> dict[str, Callable[[Path], object]]:
    """Return {name: function that creates the input}, derived from these valid examples."""
    made: dict[str, Callable[[Path], object]] = {
        "done": partial(copy, run), "net": partial(copy, model), "shapes": partial(copy, dataset),
        "mine": partial(copy, template),
        "file.txt": partial(file, "hello\n"), "full": full, "empty": Path.mkdir, "maps": maps, "picture.png": picture,
        "pipe": os.mkfifo, "device": device, "loop": loop, "sparse.json": sparse, "table.parquet": table,
        "wide.pt": wide,
        "laughs.yaml": partial(file, LAUGHS), "tagged.yaml": partial(file, TAGGED),
        "rtl-\u202e.csv": partial(file, "x"), "bad.csv": partial(file, "image_id,target\n\x00,\x1b[2J\n"),
        "odd.csv": partial(file, b"\xff\xfe\x00"),
        "formula.csv": partial(file, "image_id,target\n=cmd|' /C x'!A0,+1\n"),
    }  # fmt: skip
    made |= {name: partial(file, text) for name, text in SCALARS.items()}
    made |= {f"rows {kind}": partial(rows, kind) for kind in ("parquet", "arrow", "json")} | {"runs": runs}
    made |= {f"tensors {kind}": partial(tensors, kind) for kind in ("meta", "memo", "code", "huge", "bomb")}
    made |= {f"{name}.json": partial(file, text) for name, text in WEIRD_JSON.items()}
    for kind, source in {"run": run, "model": model, "data": dataset, "template": template}.items():
        for path in sorted(source.rglob("*")):
            name = str(path.relative_to(source))
            if path.is_file() and not path.name.startswith(".") and path.suffix != ".html":
                for what, damage in damages(name).items():
                    made[f"{kind}, {name.replace('/', ' ')}, {what}"] = partial(damaged, source, name, damage)
    return made
