"""Writes the dataset card (`README.md`) of a built dataset from the template `model_cards/dataset.md.j2`."""

from collections import Counter
from pathlib import Path
from types import ModuleType

from datasets import DatasetInfo, Features
from datasets.info import DatasetInfosDict
from datasets.splits import SplitDict, SplitInfo
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, DatasetCardData

from saliency_bench import registry
from saliency_bench.errors import UserError

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


FOLDERS = {"default": "data", "annotations": "annotations"}  # {config: where its Parquet files lie}
CONFIG = "default"  # images and masks
ANNOTATIONS = "annotations"  # the config without images, for sources that do not allow theirs to be passed on


def card(
    builder: ModuleType, account: dict, features: Features, config: str = CONFIG, images_license: str | None = None
) -> str:
    """The text of the card; `account` is what `build_report.json` says.

    images_license: under which the images are published although the source does not allow it by itself
    """
    left_out = Counter((entry["what"], entry["reason"]) for entry in account["left_out"])
    filled = DatasetCard.from_template(
        metadata(builder, account, features, config, images_license or account["license"]),
        template_path=str(template_file("dataset.md.j2")),
        config=config,
        images_license=images_license,
        terms=terms(builder, account["license"]),
        biases=biases(builder, account),
        title=builder.TITLE,
        about=(builder.__doc__ or "").strip(),
        rule=builder.RULE,
        citation=builder.CITATION,
        columns=list(features),
        **account | {"left_out": sorted(left_out.items())},
    )
    return str(filled).rstrip() + "\n"


def template_file(name: str) -> Path:
    found = next((folder / name for folder in registry.folders("model_cards") if (folder / name).is_file()), None)
    if found is None:
        raise UserError(f"the template model_cards/{name} is missing; install saliency-bench again")
    return found


def biases(builder: ModuleType, account: dict) -> list[str]:
    """What a score may owe to the data: told by the builder, and counted."""
    said = " ".join(getattr(builder, "BIASES", "").split())
    counted = [_missing(account), *(_uneven(column, account) for column in _classes(account))]
    return [line for line in (said, *counted) if line]


def _missing(account: dict) -> str | None:
    counts = account["counts"]
    without = counts["samples"] - counts["masks"]
    share = without / counts["samples"]
    return f"{without} samples ({share:.1%}) have no mask; metrics that need one leave them out." if without else None


def _classes(account: dict) -> list[str]:
    return [column for column, counts in account["counts"].items() if isinstance(counts, dict)]


def _uneven(column: str, account: dict) -> str | None:
    counts = account["counts"][column]
    low, high = min(counts, key=counts.get), max(counts, key=counts.get)
    if counts[low] == counts[high]:
        return None
    return f"`{column}` is not balanced: from {counts[low]} samples of {low} to {counts[high]} of {high}."


def metadata(builder: ModuleType, account: dict, features: Features, config: str, license: str) -> DatasetCardData:
    """The YAML at the top of the card: what the Hub and `load_dataset` read."""
    total = account["counts"]["samples"]
    name, link = terms(builder, license)
    data = DatasetCardData(
        license=license,
        license_name=name,
        license_link=link,
        pretty_name=builder.TITLE,
        task_categories=["image-classification"],
        size_categories=[next((name for limit, name in SIZES if total < limit), "n>1M")],
        tags=["saliency", "explainability", "saliency-bench", *getattr(builder, "TAGS", ())],
        citation=builder.CITATION,
    )
    files = [{"split": split, "path": f"{FOLDERS[config]}/{split}-*"} for split in account["splits"]]
    MetadataConfigs({config: {"data_files": files}}).to_dataset_card_data(data)
    infos = DatasetInfosDict({config: _info(account, features)})
    infos.to_dataset_card_data(data)
    return data


def terms(builder: ModuleType, license: str) -> tuple[str | None, str | None]:
    """(name, address) of a licence that the Hub knows only as "other"; it asks for both. (None, None) of any else."""
    return getattr(builder, "TERMS", (None, None)) if license == "other" else (None, None)


def _info(account: dict, features: Features) -> DatasetInfo:
    parts = account["splits"]
    splits = SplitDict()
    for name, part in parts.items():
        splits.add(SplitInfo(name=name, num_bytes=part["num_bytes"], num_examples=part["num_examples"]))
    return DatasetInfo(
        features=features,
        splits=splits,
        download_size=sum(file["bytes"] for part in parts.values() for file in part["files"]),
        dataset_size=sum(part["num_bytes"] for part in parts.values()),
    )
