"""The sizes of a run by its configuration, before anything is loaded.

Bytes follow the rules of the code that allocates them; what libraries and allocators take is measured.
`benchmarks/bench_plan.py` compares plans with runs. Tracing a model without weights would take as long as starting one.

batches.py   completions, tokens, updates, steps
shape.py     a decoder's numbers, from its config.json and its weights' headers; kinds of devices and their memory
images.py    what reads images, and what is kept of them
memory.py    what a process holds of a model in a layout; its bytes by part and phase
fitting.py   what fits a device: micro-batches, layouts, the one change that would; all that in words
"""
