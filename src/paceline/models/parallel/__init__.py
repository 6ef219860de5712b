"""Several processes that train one policy together. A call that waits for other ranks raises `RankLost` if one is gone
or silent for too long.

ranks.py          the interface to the other ranks, and its implementation for a single process
process_group.py  rendezvous and process group
mesh.py           device mesh: which ranks hold the same part of the model, which hold different ones
sharding.py       slices of weights, gradients and optimiser state (ZeRO)
tensor_layers.py  tensor parallelism: column and row layers, and logprobs from logits split over the vocabulary
tensor.py         tensor parallelism: how a model's layers are split, and over how many ranks it can be
stages.py         pipeline parallelism: a model's layers divided into stages
context.py        context parallelism: tokens dealt to ranks in turn, exchanged for heads within attention
mesh_ranks.py     a model's layout on a mesh; the ranks' gradients, numbers and text
pieces.py         this rank's pieces of whole tensors, and files of them that any other layout can read
staging.py        host-memory snapshots of tensors, in buffers that are reused
gathering.py      whole weights, one at a time
"""
