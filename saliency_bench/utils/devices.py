"""Which device to compute on."""

import torch

from saliency_bench.errors import UserError


def device_of(text: str | torch.device | None) -> torch.device:
    """A device of "cpu", "cuda" or "cuda:1"; of None "cuda" where there is one, else "cpu".

    Raises: UserError for a device that is not there.
    """
    has_gpu = torch.cuda.is_available()
    if text is None:
        return torch.device("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise UserError(f"unknown device '{text}'; use cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (not has_gpu or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"device {text} is not there; this machine has {torch.cuda.device_count()} GPUs, use cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{text}' is not supported; use cpu, cuda or cuda:N")
    return device
