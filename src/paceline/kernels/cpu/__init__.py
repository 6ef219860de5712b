"""Kernels in C for what torch does on a CPU in many small operations. Tensors in, tensors out.

compiling.py   compile the sources into a shared library, once per machine; call its functions with tensors
vectors.h      vectors of float32 and bfloat16, exp
decoding.c     one token per row: residual sum and norm, gated activation, sampling           (decoding.py calls it)
sharing.c      one token per row: attention over a shared prompt and own tokens, its cache    (decoding.py calls it)
recurrence.c   one token per row: delta rule, Mamba-2 and short convolution, their states       (../recurrence.py)
training.c     residual sum and norm, gated product of a micro-batch, with gradients          (training.py)
attention.c    attention of a packed micro-batch, with gradients; blocks.h has its products   (attention.py)
experts.c      experts of a mixture with their gates and weighted sums, with gradients        (experts.py)
logits.c       statistics and gradients of logits                                             (logits.py)
sums.c         weighted sums of integers, for checksums of weights                             (../checksums.py)

Large matrix products stay with torch, whose libraries are near the machine's limit. The operations in between are not.
Small ones cost more to start than to compute; large ones read and write memory that a fused loop keeps in registers.
Every caller has a torch path for machines without a compiler and for other devices. The tests check that both agree to
rounding."""
