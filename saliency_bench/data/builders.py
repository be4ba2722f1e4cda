"""The protocol of a dataset builder: one file `hub_builders/NAME.py` per dataset.

A builder is a module with a docstring (first line: what the dataset is; then: where to get the source and what the
folder must contain), these constants

    VERSION       text; raise it whenever the same source would give other rows
    TITLE         display name
    ANNOTATORS    where labels and masks come from, in the Hub's words: "crowdsourced", "expert-generated", "found",
                  "machine-generated"
    SOURCES       what the images are taken from, in the Hub's words: "original", "extended|other-NAME"
    LICENSE       identifier as the Hub spells it, such as "cc-by-sa-4.0"
    TERMS         required if LICENSE is "other": (name of the licence, its URL)
    REDISTRIBUTE  whether the images may be published
    CITATION      BibTeX
    RULE          how a sample is made, for the card
    PAPER_COUNTS  counts reported in the paper: {"samples": n, "masks": n, COLUMN: {class name: n}}, {"test": n} of
                  what is evaluated where there is more; may be partial
    check(**options)  optional, a function: refuses values of options before anything is read or written
    PAPER         optional: where the counts and the way of making it are from: "authors, title, year, address"
    TAGS          optional: extra tags for the card
    BIASES        optional: known biases, for the card
    GROUP         of a dataset whose samples have a `group`: what that is, in a few words, for the card
    ALSO_CALLED   optional: what people call it otherwise, for suggestions where a name is unknown
    EMBEDDED      optional: True if the dataset needs no source and is built on first use
    EXAMPLE       optional: options that suit its example (`EXAMPLE_LAYOUT`: that of a further layout)
    PRIVATE       optional: options of this machine (a token, a server) that change no row: not in the build report,
                  and never taken from one
    JOBS          optional: jobs per batch, for builders whose jobs take seconds (default: 32)
    PROCESSES     optional: True if its jobs are pure Python (headers, XML) rather than picture decoding, so that
                  threads would block each other; large sources are then read by several processes
    OWN_DATA      optional: for a layout of your own data instead of one named dataset: the name of its source on the
                  command line besides --source
    DERIVED       optional: True if it is made of a built dataset, which is then its source; it has no example
    USAGE         optional: the options of the example in its help, "--from shapes --model M"
    SPLIT         optional: the single split that holds every sample that gives none

and two functions

    features() -> {column: feature}                    `label` (a ClassLabel) and any extra columns; if the classes are
                                                       read from the source, `features(classes)`
    samples(source, log, *, option=default, ...)       yields a Job per image, always in the same order

and, unless it is embedded or derived,

    example(folder, count, side)                       writes a small drawn source in the raw layout, for the tests and
                                                       the page of samples (`example_LAYOUT` for a further layout)

A `Job(make, *args)` is a call `make(log, *args)` that returns a sample, a dict (or several, or None). Jobs run on
several threads, so slow work belongs there; keep their arguments small. Every file a job reads must be one of its
arguments (or lie in a folder that is one): a resumed build recomputes the jobs whose files have changed. Yielding the
dict directly works too.
A sample has `image_id` (unique text), `image`, `label` (a class name), and where they exist `mask`, `source_split`, the
extra columns, and `group`: the cluster of samples that depend on each other (patient, scene, image of several rows),
which share a split; without one, each sample is its own; and `split`, where the source decides whether it is in train,
validation or test. Pictures are a `pictures.Picture` (returned by `pictures.read`), uint8 (H, W, 3), or for masks bool
(H, W). Record whatever is left out with `log.leave_out(image_id, "image" or "mask", reason)`, and anything odd but kept
with `log.remark(image_id, text)`; `log.expected = n` (jobs) sizes the progress bar; `log.classes = {column: [names]}`,
set before the first job, is passed to `features`; `log.files = {name: bytes}` are written beside the rows. Lines
"option: text" in the docstring of `samples` are the help texts on the command line. An option `seed` receives the seed
of the build.
"""

import inspect
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from datasets import Features, Image, Value

from saliency_bench import options as bound
from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError


def settings_of(name: str, builder: ModuleType, options: dict[str, Any]) -> dict[str, Any]:
    """Return all options of a build with their values; every builder takes `seed`.

    Raises:
        UserError: An option is unknown or has an invalid value.
    """
    seed = options.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"option seed of {name} takes int; got {seed!r}")
    chosen = {key: value for key, value in options.items() if key != "seed"}
    known = bound.defaults(builder.samples)
    chosen = {
        key: _texts(name, key, value) if isinstance(known.get(key), tuple) else value for key, value in chosen.items()
    }
    resolved = dict(bound.resolved(name, builder.samples, chosen | ({"seed": seed} if "seed" in known else {})))
    bound.check(getattr(builder, "check", None), tuple(resolved.items()))
    return dict(sorted((resolved | {"seed": seed}).items()))


def _texts(name: str, key: str, value: Any) -> tuple[str, ...]:
    """Return the value of an option that takes several texts, also separated by commas.

    Raises:
        UserError: The value is not a list of texts.
    """
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(text, str) for text in listed):
        raise UserError(f"option {key} of {name} takes a list of texts; got {value!r}")
    return tuple(text.strip() for text in listed if text.strip())


def own_options(builder: ModuleType, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that `builder.samples` itself takes."""
    return {key: settings[key] for key in bound.defaults(builder.samples)}


def private(builder: ModuleType) -> tuple[str, ...]:
    """Return the options that concern only this machine."""
    return getattr(builder, "PRIVATE", ())


def start(
    builder: ModuleType, source: Path | None, log: BuildLog, options: dict[str, Any]
) -> tuple[Features, Iterator[dict | Job]]:
    """Return the columns and the samples of a source; its class list is read once."""
    samples = iter(builder.samples(source, log, **options))
    first = list(islice(samples, 1))  # `log.classes` is set before the first job
    return columns(builder, log.classes), chain(first, samples)


def columns(builder: ModuleType, classes: dict[str, list[str]] | None = None) -> Features:
    """Return the unified columns, followed by the builder's own."""
    takes_classes = "classes" in inspect.signature(builder.features).parameters
    further = dict(builder.features(classes) if takes_classes else builder.features())
    first = {"image": Image(), "label": further.pop("label"), "mask": Image()}
    texts = {name: Value("string") for name in ("image_id", "group", "source_split")}
    return Features({**first, **texts, **further})
