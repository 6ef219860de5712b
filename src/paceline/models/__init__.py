"""Load policy and reference models, adapt them, and run their forward pass over a micro-batch.

places.py           where a model's files are, without any library
weight_headers.py   what the files say of the weights, and what that alone refuses; without torch
embedded_models.py  the models that ship with the package; embedded/ holds them
pretrained.py       tokenizer and configuration by transformers
loading.py          a model from a name or from a user's object
split_loading.py    a policy of which each rank reads its own part
loaded.py           a model that is ready to train
filling.py          weights from files in any layout, each rank its own
reference.py        the model that `beta` holds the policy to
lora.py             adapters in a model's layers
adapter_files.py    an adapter's directory in peft's format
model_files.py      a whole model's directory, or the pieces of it that ranks hold
exporting.py        directories that transformers or peft load
rope.py             rotary frequencies, the same for every sequence of a run
noise.py            dropout and its like, all switched off
determinism.py      the same bits in a second run
plain_forward.py    a model's own forward pass over one row: the standard for every other way
forward.py          hidden states of a micro-batch, packed where the model allows it
attention.py        attention over packed micro-batches
varlen.py           the same by two calls of a variable-length kernel
sliding_windows.py  layers that do not see all earlier tokens
fused_layers.py     decoder layers that run packed micro-batches through kernels
tied_embedding.py   tokens looked up in an embedding that is also the output's matrix
activations.py      what a forward pass keeps: recomputed, or held in main memory
activation_checkpointing.py  how many layers to recompute, as arithmetic
records.py          micro-batches on the model's device
rows.py             rows by their numbers, with a reproducible gradient
fingerprints.py     whether weights in two places are the same bits
parallel/           how a model lies on several ranks
"""
