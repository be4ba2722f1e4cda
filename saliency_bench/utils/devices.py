"""The device to compute on, and its memory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from saliency_bench.errors import UserError


def device_of(text: str | torch.device | None) -> torch.device:
    """The device named "cpu", "cuda" or "cuda:1"; None: "cuda" if available, else "cpu".

    Raises: UserError for an unknown or unavailable device.
    """
    has_gpu = torch.cuda.is_available()
    if text is None:
        return torch.device("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise UserError(f"unknown device '{text}'; use cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (not has_gpu or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"device {text} is not available; this machine has {torch.cuda.device_count()} GPUs; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{text}' is not supported; use cpu, cuda or cuda:N")
    return device


def peak_memory(device: torch.device) -> int | None:
    """Bytes: the most that torch held on a GPU since it was first used; on a CPU the most that this process has held.

    None where the system does not say.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def is_out_of_memory(error: Exception) -> bool:
    """Whether something did not fit in the memory of the device, as torch says it."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in words or "can't allocate memory" in words


@contextmanager
def arithmetic(tf32: bool) -> Iterator[None]:
    """Products of float32 in float32, or on a GPU in TF32 (10 bits after the point); kernels of cuDNN that are
    deterministic and chosen without timing. Settings of torch are as before afterwards.

    Raises: UserError where torch cannot tell its setting, as its older and newer names were both used.
    """
    cudnn = torch.backends.cudnn
    try:
        before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    except RuntimeError as error:
        raise UserError(
            "torch's older and newer settings of precision are mixed; set only one of "
            "torch.set_float32_matmul_precision and torch.backends.*.fp32_precision"
        ) from error
    wanted = "high" if tf32 else "highest", tf32, True, False
    try:
        _set_arithmetic(*wanted)
        yield
    finally:
        _set_arithmetic(*before)


def _set_arithmetic(products: str, convolutions: bool, deterministic: bool, benchmark: bool) -> None:
    cudnn = torch.backends.cudnn
    torch.set_float32_matmul_precision(products)
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = convolutions, deterministic, benchmark
