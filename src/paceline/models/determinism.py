"""The same bits again: what torch must be told for it, and what bits hang on where it need not be told."""

import os

import torch

from paceline.kernels.cpu.compiling import library

CUBLAS_WORKSPACE = ":4096:8"
"""Fixed cuBLAS workspace per stream, which NVIDIA recommends for reproducible results."""


def be_deterministic(device: torch.device) -> None:
    """Have torch compute with operations that give the same bits each time, and raise where it has none.

    A CPU does so by itself. To be called before the device's first product: cuBLAS reads its setting once.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def bits_hang_on(device: torch.device) -> str:
    """What has to be the same for the same bits, besides options, data and versions of libraries; a sentence."""
    if device.type == "cuda":
        return "deterministic: the same bits again on the same kind of GPU; an operation that torch has not so raises"
    kernels = "compiled kernels" if library().functions is not None else "no compiled kernels"
    threads = torch.get_num_threads()
    return (
        f"deterministic: a CPU gives the same bits again by itself, on the same kind of processor with {threads} "
        f"thread{'s' * (threads > 1)} (--threads) and {kernels}, as here"
    )
