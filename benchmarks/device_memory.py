"""The memory that a GPU gave."""

import torch


def device_peak() -> dict[str, float]:
    """`device_peak_mib`, the most that torch had allocated on the GPU so far; nothing where none is used."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {"device_peak_mib": torch.cuda.max_memory_allocated() / 2**20}
