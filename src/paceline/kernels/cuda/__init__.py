"""Kernels in Triton for what torch does on a CUDA device in many small operations. Tensors in, tensors out.

triton_check.py     whether Triton is there and its kernels run
logits.py           statistics and gradients of logits, one pass each
decoding.py         operations between products and attention of a decoding step
drawing.py          tokens drawn from logits
training.py         operations around the products of a decoder layer in training, with gradients
triton_kernels.py   the kernels of logits.py and decoding.py
triton_drawing.py   the kernels of drawing.py
triton_training.py  the kernels of training.py

As in `kernels.cpu`, matrix products stay with torch, every caller has a torch path for devices without Triton, and the
two agree to rounding.

Triton comes with torch's CUDA builds. Its interpreter runs the same kernels on a CPU, slowly: with `TRITON_INTERPRET=1`
the tests compare them with torch's operations without a GPU.
"""
