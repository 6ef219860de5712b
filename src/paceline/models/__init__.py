"""Load policy and reference models, adapt them, and run their forward pass over a micro-batch.

places.py           where a model's files are, without any library; embedded/ holds those that ship with the package
gguf.py             GGUF files, llama.cpp's format: unpacked for transformers, and written
weight_headers.py   what the files say of the weights, and what that alone refuses; without torch
pretrained.py       tokenizer and configuration by transformers
loading.py          a model from a name or from a user's object; weights from files in any layout, each rank its own
policy_and_reference.py  a policy of which each rank reads its own part, and the reference of `beta`
loaded.py           a model that is ready to train; directories of it, of its adapter, or of the pieces that ranks hold
lora.py             adapters in a model's layers
rope.py             rotary frequencies, the same for every sequence of a run
plain_forward.py    a model's own forward pass over one row, the standard for every other way; modes without noise
forward.py          hidden states of a micro-batch, packed where the model allows it
attention.py        attention over packed micro-batches
varlen.py           the same by two calls of a variable-length kernel
families/           what the layers of each family compute and where their modules are
fused_layers.py     decoder layers that run packed micro-batches through kernels
tied_embedding.py   tokens looked up in an embedding that is also the output's matrix
activations.py      what a forward pass keeps: recomputed, or held in main memory
measured_activations.py  how many bytes it keeps
activation_checkpointing.py  how many layers to recompute, as arithmetic
rows.py             tensors of micro-batches: on a device, and rows with a reproducible gradient
parallel/           how a model lies on several ranks
"""
