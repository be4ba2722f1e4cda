"""What a builder makes of a source, without writing anything."""

from saliency_bench.data.jobs import BuildLog, samples_of


def built_by(builder, source, **options):
    """({image id: sample}, the log)"""
    log = BuildLog()
    return {sample["image_id"]: sample for sample in samples_of(builder.samples(source, log, **options), log)}, log


def reasons(log, what=None):
    """{(id, what is left out): the reason}, or of one kind {id: the reason}."""
    if what:
        return {entry["id"]: entry["reason"] for entry in log.left_out if entry["what"] == what}
    return {(entry["id"], entry["what"]): entry["reason"] for entry in log.left_out}


def columns(samples, *names):
    """{image id: the values of these columns}"""
    return {key: tuple(sample[name] for name in names) for key, sample in samples.items()}
