"""The engine that samples with the trainer's own weights, in the trainer's process.

engine.py        the engine
choosing.py      which decoder it samples with
scheduling.py    which completion sits in which row
rows.py          sizes that batches are rounded to
decoder.py       the interface of what computes logits
plain.py         any model of transformers, by its own forward pass and cache
recomputing.py   the same without a cache
fused.py         Llama-like models in few operations
weights.py       a module's weights as the fused decoder sees them
prepared.py      the same in the layout that its kernels read fastest
adapters.py      the same with an adapter's product added
operations.py    the operations of a layer besides attention
attention.py     the interface of attention, which owns the cache
cache.py         keys and values of the tokens so far
grid.py          attention by torch's batched products
tables.py        attention by compiled kernels
static.py        attention over a cache that never moves, for recorded steps
graphs.py        decoding steps as CUDA graphs
"""
