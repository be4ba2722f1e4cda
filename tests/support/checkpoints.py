"""Write small checkpoints with random weights."""

import torch
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

TINY = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}


def small_checkpoint(folder, names=(), *, seed=0, side=32, processor=None, spread=1, **config):
    """Write a checkpoint of a tiny ResNet, with the last weights multiplied by `spread`, and return the folder."""
    if names:
        config |= {"id2label": dict(enumerate(names)), "label2id": {name: place for place, name in enumerate(names)}}
    torch.manual_seed(seed)
    network = ResNetForImageClassification(ResNetConfig(**TINY | config))
    network.classifier[1].weight.data *= spread
    network.save_pretrained(folder)
    (processor or ViTImageProcessor(size={"height": side, "width": side})).save_pretrained(folder)
    return folder
