"""The engine that samples with the trainer's own weights, in the trainer's process.

engine.py        the engine
choice.py        which decoder it samples with
scheduling.py    when prompts enter, rows are refilled, and the batch shrinks and grows
rows.py          which completion sits in which row, and contexts of conversations between their turns
routes.py        which experts the routers chose for each completion's tokens
decoder.py       the interface of what computes logits; any model of transformers by its own forward pass
fused.py         models whose layers have a plan, in few operations
prefill.py       prompts that it computes together, what they have in common, and the images in them
experts.py       a router with its experts
mixers.py        the interface of mixers that keep a state instead of keys and values
states.py        mixers that keep a state: delta rule, Mamba-2, short convolutions
weights.py       weights, adapters included, in the layout that the fused decoder's kernels read fastest
eight_bits.py    layers in eight bits: which models they serve, and what they are held to
operations.py    the operations of a layer besides attention
attention.py     the interface of attention, which owns the cache
grid.py          attention by torch's batched products: any device and precision
tables.py        attention by compiled kernels: a CPU, float32 and bfloat16
rings.py         a trial of rows that keep a window's keys in turn, on made-up numbers
static.py        attention over a cache that never moves, for recorded steps: CUDA
graphs.py        decoding steps as CUDA graphs
"""
