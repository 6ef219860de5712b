"""Kernels in Triton for what torch does on a CUDA device in many small operations. Tensors in, tensors out.

triton_here.py    whether Triton is there and its kernels run
logits.py         statistics and gradients of logits, one pass each (logit_kernels.py)
decoding.py       what lies between products and attention of a decoding step (decoding_kernels.py)

As in `native`, matrix products stay with torch, whoever calls a kernel has a torch path for where there is none, and
the two agree to rounding.

Triton comes with torch's CUDA builds. Its interpreter runs the same kernels on a CPU, slowly:
`TRITON_INTERPRET=1` has the tests hold them to torch's operations without a GPU.
"""
