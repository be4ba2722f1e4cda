"""Writes the dataset card (`README.md`) of a built dataset from the template `model_cards/dataset.md.j2`."""

from collections import Counter
from types import ModuleType

from datasets import DatasetInfo, Features
from datasets.info import DatasetInfosDict
from datasets.splits import SplitDict, SplitInfo
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, DatasetCardData

from saliency_bench import rooms
from saliency_bench.errors import UserError

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def card(builder: ModuleType, account: dict, features: Features) -> str:
    """The text of the card; `account` is what `build_report.json` says."""
    left_out = Counter((entry["what"], entry["reason"]) for entry in account["left_out"])
    template = next(
        (f / "dataset.md.j2" for f in rooms.folders("model_cards") if (f / "dataset.md.j2").is_file()), None
    )
    if template is None:
        raise UserError("the template model_cards/dataset.md.j2 is missing; install saliency-bench again")
    filled = DatasetCard.from_template(
        metadata(builder, account, features),
        template_path=str(template),
        title=builder.TITLE,
        about=(builder.__doc__ or "").strip(),
        rule=builder.RULE,
        citation=builder.CITATION,
        columns=list(features),
        **account | {"left_out": sorted(left_out.items())},
    )
    return str(filled).rstrip() + "\n"


def metadata(builder: ModuleType, account: dict, features: Features) -> DatasetCardData:
    """The YAML at the top of the card: what the Hub and `load_dataset` read."""
    total = account["counts"]["samples"]
    data = DatasetCardData(
        license=builder.LICENSE,
        pretty_name=builder.TITLE,
        task_categories=["image-classification"],
        size_categories=[next((name for limit, name in SIZES if total < limit), "n>1M")],
        tags=["saliency", "explainability", "saliency-bench", *getattr(builder, "TAGS", ())],
    )
    files = [{"split": split, "path": f"data/{split}-*"} for split in account["splits"]]
    MetadataConfigs({"default": {"data_files": files}}).to_dataset_card_data(data)
    DatasetInfosDict({"default": _info(account, features)}).to_dataset_card_data(data)
    return data


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
