"""Select the device to compute on, measure its memory, and set the precision of its computations."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from saliency_bench.errors import UserError


def device_of(text: str | torch.device | None) -> torch.device:
    """Return the device with this name, such as "cpu" or "cuda:1". None selects "cuda" if available, else "cpu".

    Raises:
        UserError: The device is unknown or unavailable.
    """
    has_gpu = torch.cuda.is_available()
    if text is None:
        return torch.device("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise UserError(f"unknown device '{text}'; use cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (not has_gpu or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"device {text} is not available; GPUs on this machine: {torch.cuda.device_count()}; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{text}' is not supported; use cpu, cuda or cuda:N")
    return device


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a device. Copies from the host to a GPU are asynchronous."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory use in bytes since the last reset, or None if the system does not report it.

    On a GPU, this is the memory that torch has allocated. On a CPU, it is the memory of this process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, StopIteration, ValueError):  # Linux only: no other system can reset the value
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    try:
        import resource
    except ImportError:  # on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that the memory of the device was insufficient."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in words or "can't allocate memory" in words


@contextmanager
def arithmetic(tf32: bool) -> Iterator[None]:
    """Make torch compute reproducibly inside the context, and restore its settings afterwards.

    cuDNN uses deterministic kernels and selects them without timing, because timing may select a different kernel in
    each run.

    Args:
        tf32: Whether to multiply float32 values in TF32 (10-bit mantissa) on a GPU.

    Raises:
        UserError: torch's precision is ambiguous because both its older and its newer settings were used.
    """
    cudnn = torch.backends.cudnn
    try:
        before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    except RuntimeError as error:
        raise UserError(
            "torch's older and newer precision settings are mixed; set only one of "
            "torch.set_float32_matmul_precision and torch.backends.*.fp32_precision"
        ) from error
    wanted = "high" if tf32 else "highest", tf32, True, False
    try:
        _set_arithmetic(*wanted)
        yield
    finally:
        _set_arithmetic(*before)


def _set_arithmetic(products: str, convolutions: bool, deterministic: bool, benchmark: bool) -> None:
    """Set the precision of matrix products, TF32 for convolutions, and the selection of cuDNN kernels."""
    cudnn = torch.backends.cudnn
    torch.set_float32_matmul_precision(products)
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = convolutions, deterministic, benchmark
