"""Load policy and reference models, adapt them, and run their forward pass over a micro-batch.

places.py           where a model's files are, without any library; embedded/ holds those that ship with the package
gguf.py             GGUF files, llama.cpp's format: unpacked for transformers, and written
weight_headers.py   checks of weight files by their headers alone, without torch
pretrained.py       tokenizer and configuration by transformers
loading.py          a model from a name or from a user's object; weights from files in any layout
policy_and_reference.py  a policy of which each rank reads its own part, and the reference of `beta`
loaded.py           a model that is ready to train; directories of it, of its adapter, or of the pieces that ranks hold
lora.py             adapters in a model's layers
rope.py             rotary frequencies, the same for every sequence of a run
plain_forward.py    a model's own forward pass over one row, the reference for every other; modes without noise
head.py             scale and cap of a model's logits, measured on it
text_part.py        the language model in a checkpoint or an object that also reads images or sound, or all of it
forward.py          hidden states of a micro-batch, packed where the model allows it; bytes that a pass keeps
attention.py        attention over packed micro-batches, and the calls of a variable-length kernel for it
attention_checks.py  what a pass over a few tokens cannot show of attention: windows longer than they are
dense_attention.py  attention by the formulas, with sinks and a cap of the scores
routing.py          routers of experts: their precision, what they choose, and what they are given to choose
states.py           recurrent and convolutional layers over packed micro-batches, with prompts' states forked
experts.py          experts of a mixture by grouped products, and adapters beside them
families/           what the layers of each family compute and where their modules are
fused_layers.py     decoder layers that run packed micro-batches through kernels
tied_embedding.py   lookup in an embedding that is tied to the output embedding
activations.py      saved activations: recomputed, or held in main memory
activation_checkpointing.py  how many layers to recompute, as arithmetic
vision/             models that read images
rows.py             tensors of micro-batches: on a device, and rows with a reproducible gradient
parallel/           how a model lies on several ranks
"""
