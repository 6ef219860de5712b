"""Kernels in C for what torch does on a CPU in many small operations. Tensors in, tensors out.

compiling.py   sources to a shared library, once per machine; says why where there is none
vectors.h      vectors of float32 and bfloat16, exp
decoding.c     one token per row: residual sum and norm, gated activation, sampling           (decoding.py calls it)
sharing.c      one token per row: attention over a shared prompt and own tokens, its cache    (decoding.py calls it)
training.c     residual sum and norm, gated product, of all tokens of a micro-batch, with gradients  (training.py)
attention.c    attention of a packed micro-batch, with gradients; blocks.h has its products         (attention.py)
logits.c       statistics and gradients of logits                                                      (logits.py)
tiles.c        products in bfloat16 of few rows, by the processor's tiles                               (tiles.py)
sums.c         sums of whole numbers times their places, to know weights again                          (sums.py)
tensors.py     from tensors to what a C function takes

Other matrix products stay with torch: its libraries are near the machine's limit. What lies between them is not: at
small sizes an operation of torch costs more to start than to compute, at large ones it reads and writes memory that a
fused loop keeps in registers. Whoever calls a kernel has a torch path for machines without a compiler and for other
devices; the two agree to rounding, and the tests hold them to it.
"""
