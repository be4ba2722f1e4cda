"""Write the dataset card (`README.md`) of a built dataset from the template `model_cards/dataset.md.j2`."""

from collections import Counter
from pathlib import Path
from textwrap import fill
from types import ModuleType

from datasets import DatasetInfo, Features
from datasets.info import DatasetInfosDict
from datasets.splits import SplitDict, SplitInfo
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, DatasetCardData

from saliency_bench import registry
from saliency_bench.data.build_report import HIDDEN
from saliency_bench.errors import UserError

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
FOLDERS = {"default": "data", "annotations": "annotations"}  # {config: folder of its Parquet files}
MOST_CLASSES = 50  # maximum number of classes whose fractions the card lists
CONFIG = "default"  # images and masks
ANNOTATIONS = "annotations"  # the config without images, for sources whose images may not be redistributed


def card(
    builder: ModuleType, build_report: dict, features: Features, config: str = CONFIG, images_license: str | None = None
) -> str:
    """Return the text of the dataset card.

    Args:
        builder: Module of the builder.
        build_report: Content of `build_report.json`.
        features: Columns of the dataset.
        config: Config of the dataset on the Hub.
        images_license: Licence under which the images are published, if the source itself does not allow publication.
    """
    left_out = Counter((entry["what"], entry["reason"]) for entry in build_report["left_out"])
    filled = DatasetCard.from_template(
        metadata(builder, build_report, features, config, images_license or build_report["license"]),
        template_path=str(template_file("dataset.md.j2")),
        config=config,
        images_license=images_license,
        terms=terms(builder, build_report["license"]),
        biases=biases(builder, build_report),
        title=build_report.get("title", builder.TITLE),
        paper=paper(builder),
        most=MOST_CLASSES,
        shown="test" if "test" in build_report["splits"] else next(iter(build_report["splits"])),
        about=(builder.__doc__ or "").strip(),
        rule=builder.RULE,
        group=group_line(builder),
        citation=builder.CITATION,
        columns=list(features),
        **{key: value for key, value in build_report.items() if key != "title"}
        | {"left_out": sorted(left_out.items())},
    )
    return str(filled).rstrip() + "\n"


def template_file(name: str) -> Path:
    """Return the path of a card template, or raise UserError if the template is missing."""
    path = next((folder / name for folder in registry.folders("model_cards") if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"the template model_cards/{name} is missing; reinstall saliency-bench")
    return path


def paper(builder: ModuleType) -> tuple[str, str] | None:
    """Return (name, URL) of the dataset's paper, or None."""
    name, _, address = getattr(builder, "PAPER", "").rpartition(", ")
    return (name, address) if name else None


def group_line(builder: ModuleType) -> str:
    """Return a line that explains which samples form a group."""
    group = getattr(builder, "GROUP", None)
    if group is None:
        return "Each sample is its own group: the source has no information about related samples."
    return fill(
        f"`group` is {group}. The samples of a group are in the same split and form one cluster in statistics.", 120
    )


def biases(builder: ModuleType, build_report: dict) -> list[str]:
    """Return properties of the data that may influence scores. The builder lists some; others are found by counting."""
    known = " ".join(getattr(builder, "BIASES", "").split())
    counted = [_missing(build_report), *(_uneven(column, build_report) for column in _classes(build_report))]
    return [line for line in (known, *counted) if line]


def _missing(build_report: dict) -> str | None:
    """Return a line about missing masks, or None if no mask is missing."""
    counts = build_report["counts"]
    hidden = build_report["splits"].get(build_report.get(HIDDEN), {"num_examples": 0})["num_examples"]
    without = counts["samples"] - counts["masks"] - hidden
    share = without / counts["samples"]
    return f"{without} samples ({share:.1%}) have no mask; metrics that need a mask skip them." if without else None


def _classes(build_report: dict) -> list[str]:
    """Return the columns with classes that the build report counts."""
    return [column for column, counts in build_report["counts"].items() if isinstance(counts, dict)]


def _uneven(column: str, build_report: dict) -> str | None:
    """Return a line about a column if its classes are not equally frequent, else None."""
    counts = build_report["counts"][column]
    low, high = min(counts, key=counts.get), max(counts, key=counts.get)
    if counts[low] == counts[high]:
        return None
    return (
        f"`{column}` is not balanced: it has from {counts[low]} ({low}) to {counts[high]} ({high}) samples per class."
    )


def metadata(builder: ModuleType, build_report: dict, features: Features, config: str, license: str) -> DatasetCardData:
    """Return the YAML metadata of the card, which the Hub and `load_dataset` read."""
    total, masks = build_report["counts"]["samples"], build_report["counts"]["masks"]
    name, link = terms(builder, license)
    data = DatasetCardData(
        license=license,
        license_name=name,
        license_link=link,
        pretty_name=build_report.get("title", builder.TITLE),
        task_categories=["image-classification", *(["image-segmentation"] if masks else [])],
        task_ids=[f"multi-{'label' if 'labels' in features else 'class'}-image-classification"]
        + (["semantic-segmentation"] if masks else []),
        annotations_creators=list(getattr(builder, "ANNOTATORS", ())) or None,
        source_datasets=list(getattr(builder, "SOURCES", ())) or None,
        size_categories=[next((name for limit, name in SIZES if total < limit), "n>1M")],
        tags=["saliency", "explainability", "saliency-bench", *getattr(builder, "TAGS", ())],
        citation=builder.CITATION,
    )
    files = [{"split": split, "path": f"{FOLDERS[config]}/{split}-*"} for split in build_report["splits"]]
    MetadataConfigs({config: {"data_files": files}}).to_dataset_card_data(data)
    infos = DatasetInfosDict({config: _info(build_report, features)})
    infos.to_dataset_card_data(data)
    return data


def terms(builder: ModuleType, license: str) -> tuple[str | None, str | None]:
    """Return (name, URL) of the licence if its identifier on the Hub is "other", else (None, None).

    The Hub requires a name and a URL for such a licence.
    """
    return getattr(builder, "TERMS", (None, None)) if license == "other" else (None, None)


def _info(build_report: dict, features: Features) -> DatasetInfo:
    """Return the description of columns and splits for `datasets`."""
    parts = build_report["splits"]
    splits = SplitDict()
    for name, part in parts.items():
        splits.add(SplitInfo(name=name, num_bytes=part["num_bytes"], num_examples=part["num_examples"]))
    return DatasetInfo(
        features=features,
        splits=splits,
        download_size=sum(file["bytes"] for part in parts.values() for file in part["files"]),
        dataset_size=sum(part["num_bytes"] for part in parts.values()),
    )
