"""The attention matrices of a vision transformer, seen while it computes, and what its tokens are.

    with attending(classifier, images, start=0) as seen:
        total = score(classifier(images), target).sum()
    gradients = torch.autograd.grad(total, seen.matrices)
    maps = seen.maps(matrix, images)                          # any (B, T, T) over its tokens

No model is changed and no library asked: inside, a fused attention (`scaled_dot_product_attention`,
`nn.MultiheadAttention`) is computed as softmax(q k^T scale) v, and what a softmax gives is kept. So it is the same for
transformers, timm, torchvision and anyone's own module. What the tokens are is found by gradients on one image, once
per classifier: where patch tokens come from, and which tokens the head reads.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.geometry import enlarge
from saliency_bench.errors import UserError
from saliency_bench.types import Images, Maps

SOFTMAX = (torch.softmax, Tensor.softmax, F.softmax)
MEND = "use integrated_gradients or rise, defined for every classifier, or gradcam for a convolutional one"


@dataclass(frozen=True)
class Tokens:
    """blocks   how many attentions follow each other
    prefix   tokens before the patches: class, distillation, registers
    read     those of them that the head reads: (0,) for a class token, (0, 1) for a distilled DeiT
    pooled   whether the head reads the patch tokens
    """

    blocks: int
    prefix: int
    read: tuple[int, ...]
    pooled: bool


class AttentionRecorder(TorchFunctionMode):
    """While it is entered, attention is computed so that its matrices exist, and they are kept.

    matrices   [Float (B, heads, T, T)], one per block; from block `start` on they take gradients (None: no block's)
    patches    Float (B, C, h, w): the last feature map before the first attention
    inputs     what the linear layer before each matrix was given, Float (B, T, C)
    `embedded=True` lets gradients go down to the patches, and keeps the inputs; else they are of no content.
    """

    tokens: Tokens

    def __init__(self, start: int | None = None, embedded: bool = False):
        super().__init__()
        self.start, self.embedded = start, embedded
        self.matrices: list[Tensor] = []
        self.inputs: list[Tensor | None] = []
        self.patches: Tensor | None = None
        self.convolved_after = False
        self._linear_input: Tensor | None = None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            with self:
                return _attend(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            with self:
                output = _attend_many_heads(*args, **kwargs)
            return output, self._weights(**kwargs)
        output = self.compute(function, args, kwargs)
        if function is F.linear:
            self._linear_input = args[0] if args else kwargs["input"]
        elif function is F.conv2d:
            return self._see_feature_map(output)
        elif function in SOFTMAX and output.ndim > 2:
            self._see_matrix(output)
        return output

    def compute(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    @property
    def grid(self) -> tuple[int, int]:
        assert self.patches is not None
        return self.patches.shape[2], self.patches.shape[3]

    def read(self, matrix: Tensor) -> Tensor:
        """(B, h, w): what the tokens that the head reads hold for each patch, in a matrix (B, T, T).

        The class token's row; where the head reads several kinds of tokens (class, distillation, the patches, which
        count as one by their mean), the mean of their rows.
        """
        rows = [matrix[:, token] for token in self.tokens.read]
        if self.tokens.pooled:
            rows.append(matrix[:, self.tokens.prefix :].mean(dim=1))
        row = torch.stack(rows).mean(dim=0)  # (B, T)
        return row[:, self.tokens.prefix :].unflatten(1, self.grid)

    def maps(self, matrix: Tensor, images: Images) -> Maps:
        """(B, H, W): `read`, enlarged to the images."""
        return enlarge(self.read(matrix), images)

    def refuse_what_is_not_tokens(self, classifier: Classifier, images: Images) -> None:
        """Raises: UserError where the matrices are not those of all patch tokens, block after block."""
        matrices = self.matrices
        if not matrices:
            raise UserError(
                f"{classifier.id} has no attention that can be seen ({MEND}; a transformer with a fused kernel of its "
                "own: load it with attn_implementation='eager')"
            )
        tokens = matrices[0].shape[-1]
        squares = all(m.ndim == 4 and m.shape == (len(images), m.shape[1], tokens, tokens) for m in matrices)
        sequences = all(x is not None and x.shape[:-1] == (len(images), tokens) for x in self.inputs)
        if not squares or not sequences or self.convolved_after or self.patches is None or self._spare < 0:
            raise UserError(
                f"{classifier.id} does not attend from all patches to all patches in every block (windows, pooled or "
                f"mixed heads, convolutions between blocks?), so its attention is no map over patches; {MEND}"
            )

    def _weights(self, need_weights: bool = True, average_attn_weights: bool = True, **others: Any) -> Tensor | None:
        if not need_weights:
            return None
        return self.matrices[-1].mean(dim=1) if average_attn_weights else self.matrices[-1]

    @property
    def _spare(self) -> int:
        return self.matrices[0].shape[-1] - math.prod(self.grid)

    def _see_feature_map(self, output: Tensor) -> Tensor:
        if self.matrices:
            self.convolved_after = True
            return output
        if self.embedded and not output.requires_grad:
            output.requires_grad_()
        self.patches = output
        return output.clone() if self.embedded else output  # a leaf must not be changed in place

    def _see_matrix(self, output: Tensor) -> None:
        if self.start is not None and len(self.matrices) >= self.start and not output.requires_grad:
            output.requires_grad_()
        self.matrices.append(output)
        before = self._linear_input
        # Its shape is enough for most, and costs no memory.
        self.inputs.append(before if before is None or self.embedded else before.detach().to("meta"))


@contextmanager
def attending(
    classifier: Classifier,
    images: Images,
    start: int | None = None,
    mode: type[AttentionRecorder] = AttentionRecorder,
    **options: Any,
) -> Iterator[AttentionRecorder]:
    """`AttentionRecorder` with what is known of the classifier's tokens; a negative `start` counts from the last block.

    Raises: UserError for a network whose attention is not from all patches to all patches, for a `start` it has not.
    """
    tokens = tokens_of(classifier, images)
    if start is not None and not -tokens.blocks <= start < tokens.blocks:
        raise UserError(f"start={start}, but {classifier.id} has {tokens.blocks} blocks; the first is 0")
    seen = mode(None if start is None else start % tokens.blocks, **options)
    seen.tokens = tokens
    with seen:
        yield seen
    seen.refuse_what_is_not_tokens(classifier, images)


_known: WeakKeyDictionary[Classifier, Tokens] = WeakKeyDictionary()


def tokens_of(classifier: Classifier, images: Images) -> Tokens:
    """What the tokens of a classifier are, found with the first image by a forward and a backward pass, then kept.

    Raises: UserError for a network whose attention is not from all patches to all patches, one block after the other.
    """
    if classifier not in _known:
        with torch.enable_grad():
            _known[classifier] = _probed(classifier, images[:1])
    return _known[classifier]


def _probed(classifier: Classifier, image: Images) -> Tokens:
    with AttentionRecorder(start=0, embedded=True) as seen:
        logits = classifier(image)
    classifier.passes -= 1
    seen.refuse_what_is_not_tokens(classifier, image)
    prefix = seen._spare
    if not _in_a_row(seen) or not _in_place(seen, prefix):
        raise UserError(
            f"the tokens of {classifier.id} are not its patches, row by row, after the class token, or its blocks do "
            f"not follow one another, so its attention is no map over patches; {MEND}"
        )
    # Weights of both signs, no two alike, so that no class hides another.
    (gradient,) = torch.autograd.grad(_mixed(logits), seen.matrices[-1])
    is_read = gradient[0].abs().sum(dim=(0, 2)) > 0  # (T,): a row that the head does not read gets no gradient
    read, pooled = tuple(is_read[:prefix].nonzero().flatten().tolist()), bool(is_read[prefix:].any())
    if not read and not pooled:
        raise UserError(f"the logits of {classifier.id} do not depend on its last attention (a head of zeros?); {MEND}")
    return Tokens(len(seen.matrices), prefix, read, pooled)


def _in_a_row(seen: AttentionRecorder) -> bool:
    """Whether each block sees what the one before has attended to (and does not work beside it)."""
    pairs = zip(seen.matrices[:-1], seen.inputs[1:], strict=True)
    return all(_gradient(_mixed(later), matrix) is not None for matrix, later in pairs if later is not None)


def _in_place(seen: AttentionRecorder, prefix: int) -> bool:
    """Whether the first, a middle and the last patch token come from the patch at their place, and from no other."""
    first, patches = seen.inputs[0], seen.patches
    assert first is not None
    assert patches is not None
    count = math.prod(seen.grid)
    for place in {0, count // 2, count - 1}:
        gradient = _gradient(_mixed(first[:, prefix + place]), patches)
        if gradient is None or gradient[0].abs().sum(dim=0).flatten().nonzero().flatten().tolist() != [place]:
            return False
    return True


def _gradient(of: Tensor, by: Tensor) -> Tensor | None:
    return torch.autograd.grad(of, by, retain_graph=True, allow_unused=True)[0] if of.requires_grad else None


def _mixed(values: Tensor) -> Tensor:
    weights = torch.arange(1, values.shape[-1] + 1, device=values.device).cos()
    return (values.float() * weights).sum()


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` as it is defined, in operations of which each can be seen."""
    if is_causal or dropout_p:
        raise UserError(f"this network has causal attention, or dropout in it, which no map is defined for; {MEND}")
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    logits = (query @ key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        is_bias = attn_mask.dtype != torch.bool
        logits = logits + attn_mask if is_bias else logits.masked_fill(~attn_mask, -torch.inf)
    weights = F.softmax(logits, dim=-1, dtype=torch.float32)
    return weights.to(value.dtype) @ value


def _attend_many_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    **others: Any,
) -> Tensor:
    """(T, B, C): self-attention of `nn.MultiheadAttention` in operations of which each can be seen."""
    masks = (others.get("key_padding_mask"), others.get("attn_mask"), bias_k, bias_v)
    is_plain = query is key is value and query.ndim == 3 and in_proj_weight is not None and not add_zero_attn
    if not is_plain or any(mask is not None for mask in masks) or (others.get("training") and dropout_p):
        raise UserError(f"this network has attention with masks, or between other things than its tokens; {MEND}")
    assert in_proj_weight is not None
    tokens = query.transpose(0, 1)  # (B, T, C)
    packed = F.linear(tokens, in_proj_weight, in_proj_bias)
    split = packed.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, heads, T, C / heads)
    attended = F.scaled_dot_product_attention(*split.unbind(0))
    joined = attended.transpose(1, 2).flatten(2)  # (B, T, C)
    return F.linear(joined, out_proj_weight, out_proj_bias).transpose(0, 1)
