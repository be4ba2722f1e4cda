"""What a builder makes of a source, without writing anything."""

from saliency_bench.data.jobs import BuildLog, samples_of


def built_by(builder, source, **options):
    """({image id: sample}, the log)"""
    log = BuildLog()
    return {sample["image_id"]: sample for sample in samples_of(builder.samples(source, log, **options), log)}, log
