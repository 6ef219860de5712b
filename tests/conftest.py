"""One thread per test process: two processes with two threads each on two cores run many times slower.

No test asks the Hub: where it cannot be reached, its library tries again for a minute.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

torch.set_num_threads(1)
