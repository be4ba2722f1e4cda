"""Record the attention matrices of a vision transformer during a forward pass, and identify its tokens.

    with recording_attention(classifier, images, start=0) as recorded:
        total = score(classifier(images), target).sum()
    gradients = torch.autograd.grad(total, recorded.matrices)
    maps = recorded.maps(matrix, images)                          # matrix: any (B, T, T) over the tokens

Neither the model nor its library is changed. Inside `with`, fused attention (`scaled_dot_product_attention`,
`nn.MultiheadAttention`) is computed as softmax(q k^T scale) v, and the output of each softmax is stored. This also
works for timm, torchvision and your own modules. The tokens are identified from gradients for a noise picture. The
gradients show which pixels each patch token comes from, and which tokens the head reads. This step runs once per
classifier and image size. It also covers parts of the network that disable gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.cuts import call_uncut, check_gradient
from saliency_bench.compute.classifiers.layers import check_patches, check_views, refuse_script
from saliency_bench.data.geometry import enlarge
from saliency_bench.errors import UserError
from saliency_bench.types import Images, Maps
from saliency_bench.utils.seeds import seed_of, uniform

SOFTMAX = (torch.softmax, Tensor.softmax, F.softmax)
FIX_WITHOUT_GRADIENTS = "use an explainer that only needs the outputs, such as rise"
FIX = "use integrated_gradients or rise, which work with every classifier, or gradcam for a convolutional network"
POOLING_HEAD = (
    "ends in an attention-pooling head, as SigLIP does. The queries of this head are not patches, so its attention is "
    f"not a map over patches; {FIX}"
)
FIX_OF_STAGES = "use gradcam (which reads its last feature map), integrated_gradients or rise"


@dataclass(frozen=True)
class Tokens:
    """The tokens of a vision transformer.

    Attributes:
        blocks: Number of consecutive attention blocks.
        patches: Index of each patch's token, Int (h, w). The other tokens are class, distillation and register tokens.
        read: Non-patch tokens that the head reads: (0,) for a class token, (0, 1) for a distilled DeiT.
        pooled: Whether the head reads the patch tokens.
    """

    blocks: int
    patches: Tensor
    read: tuple[int, ...]
    pooled: bool


class AttentionRecorder(TorchFunctionMode):
    """Context manager that computes the network's attention without fused kernels, and stores the attention matrices.

    Args:
        start: First block whose matrices get gradients; None if no block needs gradients.
        whole: Whether to keep `inputs` with their values and gradients, not only their shapes.

    Attributes:
        matrices: List of Float (B, heads, T, T), one matrix per block.
        features: Last feature map of the convolutions before the first attention layer, Float (B, C, h, w), after
            normalisation, activation and pooling; None if there are no such convolutions.
        inputs: Input of the linear layer before each matrix, Float (B, T, C).
        convolved_after: Whether the network has a convolution after the first attention layer.
        tokens: Tokens of the classifier, set by `recording_attention`.
    """

    tokens: Tokens

    def __init__(self, start: int | None = None, whole: bool = False):
        super().__init__()
        self.start, self.whole = start, whole
        self.matrices: list[Tensor] = []
        self.inputs: list[Tensor | None] = []
        self.features: Tensor | None = None
        self.convolved_after = False
        self._linear_inputs: list[Tensor] = []  # since the last matrix
        self._stem: Tensor | None = None  # the features that the next operation receives

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
            self._linear_inputs.append(args[0] if args else kwargs["input"])
        elif function is F.conv2d or (args and args[0] is self._stem and _is_stem_operation(function)):
            return self._record_features(output)
        elif function in SOFTMAX and output.ndim > 2:
            self._record_matrix(output)
        return output

    def compute(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a torch function. Subclasses may replace the computation."""
        return function(*args, **kwargs)

    def read(self, matrix: Tensor) -> Tensor:
        """Return how much the tokens that the head reads attend to each patch, (B, h, w), given a matrix (B, T, T).

        If the head reads a class token, the result is the row of this token. If it reads several types of tokens
        (class, distillation, or the mean of the patches, which counts as one token), the result is the mean of their
        rows.
        """
        rows = [matrix[:, token] for token in self.tokens.read]
        if self.tokens.pooled:
            rows.append(matrix[:, self.tokens.patches.flatten()].mean(dim=1))
        return torch.stack(rows).mean(dim=0)[:, self.tokens.patches]

    def maps(self, matrix: Tensor, images: Images) -> Maps:
        """Return `read(matrix)` upsampled to the size of the images, (B, H, W)."""
        return enlarge(self.read(matrix), images)

    def check_tokens(self, classifier: Classifier, images: Images) -> None:
        """Raise UserError unless every block attends from all patch tokens to all patch tokens."""
        matrices = self.matrices
        if not matrices:
            refuse_script(classifier)
            raise UserError(
                f"{classifier.id} has no attention that can be recorded; {FIX}; if it is a transformer with a custom "
                "fused kernel, load it with attn_implementation='eager'"
            )
        tokens = matrices[0].shape[-1]
        squares = all(m.ndim == 4 and m.shape == (len(images), m.shape[1], tokens, tokens) for m in matrices)
        sequences = all(x is not None and x.shape[:-1] == (len(images), tokens) for x in self.inputs)
        if self._windows_or_stages(len(images)):
            raise UserError(
                f"the attention of {classifier.id} is not a map over patches, because some blocks do not attend from "
                "all patches to all patches (the network may have windows or stages as in Swin, MaxViT and PVT, "
                f"attention over channels as in XCiT, or a class token that joins late as in CaiT); {FIX_OF_STAGES}"
            )
        if self._pools_by_attention(tokens):
            raise UserError(f"{classifier.id} {POOLING_HEAD}")
        if not squares or not sequences or self.convolved_after:
            raise UserError(
                f"the attention of {classifier.id} is not a map over patches, because some blocks do not attend from "
                "all patches to all patches (the network may use windows, pooled or mixed heads, or convolutions "
                f"between blocks); {FIX}"
            )

    def _weights(self, need_weights: bool = True, average_attn_weights: bool = True, **others: Any) -> Tensor | None:
        """Return the attention weights that `multi_head_attention_forward` returns with its output."""
        if not need_weights:
            return None
        return self.matrices[-1].mean(dim=1) if average_attn_weights else self.matrices[-1]

    def _windows_or_stages(self, images: int) -> bool:
        """Return whether blocks attend only within windows, or the number of tokens changes between blocks (stages).

        The last matrix may belong to a head and is ignored.
        """
        blocks = self.matrices[:-1]
        return any(matrix.shape[0] != images or matrix.shape[-2:] != blocks[0].shape[-2:] for matrix in blocks)

    def _pools_by_attention(self, tokens: int) -> bool:
        """Return whether only the last matrix has queries that are not tokens, as in attention pooling."""
        *blocks, last = (matrix.shape[-2:] for matrix in self.matrices)
        return bool(blocks) and all(block == (tokens, tokens) for block in blocks) and last[0] != last[1]

    def _record_features(self, output: Tensor) -> Tensor:
        """Store the output if it is a feature map before any attention, and return it for the next operation."""
        if self.matrices:
            self.convolved_after = True
            return output
        self.features = output
        self._stem = self.compute(torch.clone, (output,), {}) if self.whole else output  # may be changed in place
        return self._stem

    def _record_matrix(self, output: Tensor) -> None:
        """Store the output of a softmax as an attention matrix, and the input of the linear layer before it."""
        if self.start is not None and len(self.matrices) >= self.start and not output.requires_grad:
            output.requires_grad_()
        self.matrices.append(output)
        # The last linear layer over the tokens; the linear layer of a relative position bias may follow it.
        sequences = [x for x in self._linear_inputs if x.shape[:-1] == (len(output), output.shape[-1])]
        linear_input = next(iter((sequences or self._linear_inputs)[-1:]), None)
        self._linear_inputs = []
        # Most callers only need the shape, which takes no memory.
        self.inputs.append(linear_input if linear_input is None or self.whole else linear_input.detach().to("meta"))


@contextmanager
def recording_attention(
    classifier: Classifier,
    images: Images,
    start: int | None = None,
    mode: type[AttentionRecorder] = AttentionRecorder,
    **options: Any,
) -> Iterator[AttentionRecorder]:
    """Identify the classifier's tokens, and record attention inside the context.

    Args:
        classifier: The classifier.
        images: Images. The tokens are identified for images of this size.
        start: First block for which gradients are computed. A negative number counts from the last block.
        mode: Class of the recorder.
        options: Further arguments of the recorder.

    Raises:
        UserError: A block does not attend from all patches to all patches, or `start` is invalid.
    """
    tokens = tokens_of(classifier, images)
    if start is not None and torch.is_grad_enabled():
        check_gradient(classifier, images)
    if start is not None and not -tokens.blocks <= start < tokens.blocks:
        raise UserError(
            f"start={start} is out of range: {classifier.id} has {tokens.blocks} blocks, numbered from 0; use a number "
            f"below {tokens.blocks}"
        )
    recorded = mode(None if start is None else start % tokens.blocks, **options)
    recorded.tokens = tokens
    with recorded:
        yield recorded
    recorded.check_tokens(classifier, images)


class _Uncut(AttentionRecorder):
    """AttentionRecorder that computes gradients even where a network disables them or detaches a tensor."""

    def compute(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a torch function with autograd enabled."""
        return call_uncut(function, args, kwargs)


_identified: WeakKeyDictionary[Classifier, dict[torch.Size, Tokens]] = WeakKeyDictionary()


def tokens_of(classifier: Classifier, images: Images) -> Tokens:
    """Return a classifier's tokens for images of this size.

    The tokens are identified with one forward pass and several backward passes, and cached.

    Raises:
        UserError: A block does not attend from all patches to all patches, or a branch of the network bypasses the
            patches.
    """
    known = _identified.setdefault(classifier, {})
    size = images.shape[2:]
    if size not in known:
        image = torch.from_numpy(uniform(seed_of("tokens"), images[0].numel())).view_as(images[:1]).to(images)
        try:
            tokens = _tokens(classifier, image)
        except UserError:
            check_views(classifier, images)  # raises a more specific error, if there is one
            raise
        check_patches(classifier, images)
        known[size] = tokens
    return known[size]


def _tokens(classifier: Classifier, image: Images) -> Tokens:
    """Return the tokens of a classifier.

    If part of the network blocks gradients, the tokens are identified with gradients enabled in that part.
    """
    with torch.enable_grad():
        try:
            return _identify(classifier, image, AttentionRecorder)
        except UserError:
            return _identify(classifier, image, _Uncut)


def _identify(classifier: Classifier, image: Images, mode: type[AttentionRecorder]) -> Tokens:
    image = image.clone().requires_grad_()
    with classifier.uncounted(), mode(start=0, whole=True) as recorded:
        logits = classifier(image)
    recorded.check_tokens(classifier, image)
    sequence = recorded.inputs[0]
    assert sequence is not None
    if _gradient(_mixed(sequence), image) is None:
        raise UserError(
            f"the gradient is cut inside {classifier.id}, between the image and the first attention layer, so tokens "
            f"cannot be matched to patches; {FIX_WITHOUT_GRADIENTS}"
        )
    patches = _patches(sequence, image)
    if patches is None and recorded.features is not None:
        patches = _patches(sequence, recorded.features)
    if patches is None or not _blocks_are_sequential(recorded):
        raise UserError(
            f"{classifier.id} does not have one token per patch, or its blocks do not run one after the other, so its "
            f"attention is not a map over patches; {FIX}"
        )
    gradient = _gradient(_mixed(logits), recorded.matrices[-1])
    is_read = torch.zeros(sequence.shape[1], dtype=torch.bool)
    if gradient is not None:  # a row that the head does not read has no gradient
        is_read = (gradient[0].abs().sum(dim=(0, 2)) > 0).cpu()
    pooled = bool(is_read[patches].any())
    is_read[patches] = False
    read = tuple(is_read.nonzero().flatten().tolist())
    if not read and not pooled:
        raise UserError(
            f"the logits of {classifier.id} do not depend on its last attention layer (are all weights of its head "
            f"0?); {FIX}"
        )
    return Tokens(len(recorded.matrices), patches, read, pooled)


def _blocks_are_sequential(recorded: AttentionRecorder) -> bool:
    """Return whether each block depends on the attention of the previous block, so that no blocks run in parallel."""
    pairs = zip(recorded.matrices[:-1], recorded.inputs[1:], strict=True)
    return all(_gradient(_mixed(later), matrix) is not None for matrix, later in pairs if later is not None)


def _patches(sequence: Tensor, source: Tensor) -> Tensor | None:
    """Return the token index of each patch, Int (h, w), or None if the tokens do not form rows and columns.

    Each pixel is assigned to the token that depends on it most. The index of that token is found bit by bit: the
    gradients of all tokens whose index has the bit are compared with the gradients of all other tokens.

    Args:
        sequence: Tokens (1, T, C).
        source: The image or feature map (1, C, H, W) that the tokens are computed from.
    """
    count = sequence.shape[1]
    owner = torch.zeros(source.shape[2:], dtype=torch.long)
    is_seen = torch.ones(source.shape[2:], dtype=torch.bool)
    for bit in range(max(1, (count - 1).bit_length())):
        has_bit = (torch.arange(count) >> bit) % 2 == 1
        with_bit, without = (_dependence(sequence[:, chosen], source) for chosen in (has_bit, ~has_bit))
        owner += (with_bit > without).long() << bit
        is_seen &= with_bit != without
    return _grid(torch.where(is_seen, owner, -1))


def _dependence(tokens: Tensor, source: Tensor) -> Tensor:
    """Return how much these tokens depend on each pixel, Float (H, W). The source is an image or a feature map."""
    gradient = _gradient(_mixed(tokens), source)
    return torch.zeros(source.shape[2:]) if gradient is None else gradient[0].abs().sum(dim=0).cpu()


def _grid(owner: Tensor) -> Tensor | None:
    """Convert the token index of each pixel (H, W) to the token index of each patch (h, w).

    Return None if a patch is not a rectangle. Strips of pixels at the borders may belong to no token (-1) if they are
    narrower than a patch.
    """
    rows, heights = owner.unique_consecutive(dim=0, return_counts=True)
    grid, widths = rows.unique_consecutive(dim=1, return_counts=True)
    rows_with, columns_with = (grid >= 0).any(dim=1), (grid >= 0).any(dim=0)
    inner = grid[rows_with][:, columns_with]
    if inner.numel() == 0 or bool((inner < 0).any()) or len(inner.unique()) < inner.numel():
        return None
    has_margin = any(
        bool((sizes[~kept] >= sizes[kept].max()).any())
        for sizes, kept in ((heights, rows_with), (widths, columns_with))
    )
    return None if has_margin else inner


def _gradient(total: Tensor, inputs: Tensor) -> Tensor | None:
    """Return the gradient of a scalar, or None if the scalar does not depend on the inputs."""
    return torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)[0] if total.requires_grad else None


def _is_stem_operation(function: Any) -> bool:
    """Return whether a function is a normalisation, activation or pooling. All of these return a feature map."""
    name = getattr(function, "__name__", "").strip("_")
    return name.endswith(("_norm", "pool2d")) or name in ("relu", "gelu", "silu", "hardswish", "dropout")


def _mixed(values: Tensor) -> Tensor:
    """Return a weighted sum of all values. The weights are distinct and of both signs, so that values do not cancel."""
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
    """Compute `scaled_dot_product_attention` as softmax(q k^T scale) v, with operations that can be recorded."""
    if is_causal or dropout_p:
        raise UserError(
            f"this network has causal attention or attention dropout, and no attention map is defined for these; {FIX}"
        )
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
    """Compute the self-attention of `nn.MultiheadAttention`, (T, B, C), with operations that can be recorded."""
    if key is value and query.shape[0] != key.shape[0]:  # both are (T, B, C)
        raise UserError(f"this network {POOLING_HEAD}")
    masks = (others.get("key_padding_mask"), others.get("attn_mask"), bias_k, bias_v)
    is_plain = query is key is value and query.ndim == 3 and in_proj_weight is not None and not add_zero_attn
    if not is_plain or any(mask is not None for mask in masks) or (others.get("training") and dropout_p):
        raise UserError(
            f"this network has masked attention or cross-attention, and no attention map is defined for these; {FIX}"
        )
    assert in_proj_weight is not None
    tokens = query.transpose(0, 1)  # (B, T, C)
    packed = F.linear(tokens, in_proj_weight, in_proj_bias)
    split = packed.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, heads, T, C / heads)
    attended = F.scaled_dot_product_attention(*split.unbind(0))
    joined = attended.transpose(1, 2).flatten(2)  # (B, T, C)
    return F.linear(joined, out_proj_weight, out_proj_bias).transpose(0, 1)
