"""What the options that several explainers share mean, where a docstring does not say it."""

COMMON = {
    "on": "whether a target's weights are those of logits ('logit') or of probabilities ('probability')",
    "layer": "dotted name of a module that gives a feature map; None: the last one",
    "reduction": "over channels: 'max' of the absolute values, or signed 'sum'",
    "batch_size": "pictures in one pass; None: as many as fit",
}
