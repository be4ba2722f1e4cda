"""Build samples from a source without writing files."""

from saliency_bench.data.jobs import BuildLog, samples_of


def built_by(builder, source, **options):
    """Return ({image id: sample}, log)."""
    log = BuildLog()
    return {sample["image_id"]: sample for sample in samples_of(builder.samples(source, log, **options), log)}, log


def reasons(log, what=None):
    """Return {(id, left-out item): reason}, or {id: reason} for one type of item."""
    if what:
        return {entry["id"]: entry["reason"] for entry in log.left_out if entry["what"] == what}
    return {(entry["id"], entry["what"]): entry["reason"] for entry in log.left_out}


def columns(samples, *names):
    """Return {image id: values of these columns}."""
    return {key: tuple(sample[name] for name in names) for key, sample in samples.items()}
