"""Several processes that train one policy together. A call that waits for other ranks raises `RankLost` where one is
gone, or silent for too long.

ranks.py          what they need of each other, which tokens each computes, and a process that is alone
process_group.py  where they meet
mesh.py           their places: which of them hold the same, which hold parts of it
sharding.py       slices of weights, gradients and optimiser state (ZeRO)
tensor_layers.py  layers of which a rank has some rows or columns, and logprobs where it has some logits
tensor.py         heads, widths and tokens to the ranks of the tensor axis, and over how many a model can be split
stages.py         a model's layers to the stages of a pipeline
exchange.py       some tokens and all heads for all tokens and some heads
context.py        tokens to ranks in turn, and heads in their place for attention
mesh_ranks.py     how a model lies on the ranks of a mesh; their gradients, numbers and text
pieces.py         what of whole tensors lies on a rank; files of it, written in one layout and read in any other
staging.py        host-memory snapshots of tensors, in buffers that are reused
gathering.py      whole weights, one at a time
"""
