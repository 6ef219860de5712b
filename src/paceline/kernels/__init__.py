"""Tensor operations in the fastest form for each device: tensors in, tensors out.

cpu/                C for a CPU
cuda/               Triton for a CUDA device
linear.py           matrix products, in the form that is fastest for their shape
grouped.py          products of rows with the matrix of their group, as of experts
float8.py           matrix products in eight bits
flash_attention.py  attention without the matrix of scores
states.py           order of packed tokens along their sequences, and convolutions by it
recurrence.py       one token of layers that carry a state of a fixed size
cache.py            directory of files that are made once per machine; without torch
checksums.py        fingerprints by which copies of weights are compared
logprobs.py         log-probabilities and entropy from hidden states, in chunks
"""
