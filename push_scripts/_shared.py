"""Options that several commands share."""

from argparse import ArgumentParser


def dataset(parser: ArgumentParser) -> None:
    parser.add_argument("--dataset", default="shapes-xai", help="name, Hub id or folder (default: shapes-xai)")


def work(parser: ArgumentParser, batch_size: int) -> None:
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N samples")
    parser.add_argument("--batch-size", type=int, default=batch_size, metavar="N", help=f"default: {batch_size}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--device", help="cpu or cuda (default: cuda if available)")


def out(parser: ArgumentParser, default: str | None = None) -> None:
    about = "folder to write" + (f" (default: {default})" if default else "")
    parser.add_argument("--out", default=default, required=default is None, metavar="DIR", help=about)


def namespace(parser: ArgumentParser) -> None:
    parser.add_argument("--namespace", default="saliency-bench", metavar="NAME",
                        help="user or organisation on the Hub (default: saliency-bench)")  # fmt: skip


def json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
