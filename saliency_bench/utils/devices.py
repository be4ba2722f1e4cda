"""The device to compute on."""

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
