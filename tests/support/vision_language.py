"""Create checkpoint folders of small vision-language models of all types, with single-letter tokenizers."""

import torch
import transformers as hf
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

KINDS = ("clip", "clip, quick gelu, eager", "metaclip_2", "altclip", "chinese_clip", "align", "siglip", "siglip2")
LETTERS = "abcdefghijklmnopqrstuvwxyz,."
TOWER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
POSITIONS = 48


def tokenizer_of(kind):
    """Return a tokenizer with one token per letter."""
    if kind.startswith("clip"):
        tokens = ["<|startoftext|>", *LETTERS, *(letter + "</w>" for letter in LETTERS), "<|endoftext|>"]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        return hf.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=POSITIONS)
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *LETTERS]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if kind == "siglip2":
        return hf.Siglip2Tokenizer(vocab=vocabulary, merges=[], model_max_length=POSITIONS)
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>",
                                                        special_tokens=[("<bos>", 2), ("<eos>", 1)])  # fmt: skip
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        model_max_length=POSITIONS,
    )  # fmt: skip


def network_of(kind, tokenizer, **more):
    """Return a network with random weights for 32 x 32 pixels, in evaluation mode."""
    torch.manual_seed(0)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id,
           "eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": POSITIONS}  # fmt: skip
    texts, image = TOWER | ids, TOWER | {"image_size": 32, "patch_size": 8} | more
    if kind == "clip, quick gelu, eager":
        config = hf.CLIPConfig(text_config=texts, vision_config=image, projection_dim=12, attn_implementation="eager")
        assert config.vision_config.hidden_act == config.text_config.hidden_act == "quick_gelu"
        network = hf.CLIPModel(config)
    elif kind == "clip":
        gelu = {"hidden_act": "gelu"}
        network = hf.CLIPModel(hf.CLIPConfig(text_config=texts | gelu, vision_config=image | gelu, projection_dim=12))
    elif kind == "metaclip_2":
        network = hf.MetaClip2Model(hf.MetaClip2Config(text_config=texts, vision_config=image, projection_dim=12))
    elif kind == "altclip":
        texts |= {"project_dim": 16, "max_position_embeddings": POSITIONS + 2}
        network = hf.AltCLIPModel(hf.AltCLIPConfig(text_config=texts, vision_config=image, projection_dim=12))
    elif kind == "chinese_clip":
        network = hf.ChineseCLIPModel(hf.ChineseCLIPConfig(text_config=texts, vision_config=image, projection_dim=12))
    elif kind == "align":
        narrow = {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.3}
        network = hf.AlignModel(hf.AlignConfig(text_config=texts, vision_config=narrow, projection_dim=80))
    elif kind == "siglip":
        network = hf.SiglipModel(hf.SiglipConfig(text_config=texts, vision_config=image))
    else:
        image = {name: value for name, value in image.items() if name != "image_size"} | {"num_patches": 16}
        network = hf.Siglip2Model(hf.Siglip2Config(text_config=texts, vision_config=image))
    for name, parameter in network.named_parameters():
        # Larger weights than at the start of training, where attention is almost uniform.
        if parameter.ndim > 1 and not (kind == "align" and name.startswith("vision")):
            torch.nn.init.normal_(parameter, std=0.25)
        elif name == "logit_bias":
            torch.nn.init.constant_(parameter, -3)
    if kind == "align":  # update batch norm statistics, without which features vanish
        network.train()
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
        with torch.no_grad():
            network.vision_model(pixel_values=torch.randn(16, 3, 32, 32))
    return network.eval()


def processor_of(kind):
    """Return an image processor with an output of 32 x 32 pixels."""
    if kind == "siglip2":
        return hf.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    if kind == "siglip":
        return hf.SiglipImageProcessor(size={"height": 32, "width": 32})
    return hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def folder_of(kind, path, **more):
    """Write a checkpoint with tokenizer and image processor and return its folder."""
    tokenizer = tokenizer_of(kind)
    for part in (network_of(kind, tokenizer, **more), tokenizer, processor_of(kind)):
        part.save_pretrained(path)
    return path
