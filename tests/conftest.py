"""One thread per test process: two processes with two threads each on two cores run many times slower.

No test asks the Hub: where it cannot be reached, its library tries again for a minute. PACELINE_TEST_DEVICE=cuda makes
models and tensors of the tests on a GPU: `benchmarks/gpu.sh` runs the laws so.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

torch.set_num_threads(1)
if "PACELINE_TEST_DEVICE" in os.environ:
    torch.set_default_device(os.environ["PACELINE_TEST_DEVICE"])
