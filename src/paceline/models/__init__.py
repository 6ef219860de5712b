"""Load policy and reference models, and run their forward pass over a micro-batch.

fingerprint.py    a model and a tokenizer known again
determinism.py    the same bits in a second run
loaded.py         a model that is ready to train
loading.py        models from a name or a user's object
split_loading.py  a policy of which each rank reads its own part
rope.py           rotary frequencies, the same for every sequence of a run
noise.py          dropout and its like, all off
reference.py      the model that `beta` holds the policy to
activations.py    what a forward pass keeps, computed again or held in main memory
lora.py           adapters in a model's layers
adapter_files.py  an adapter's directory in peft's format
model_files.py    a whole model's directory, or the pieces of it that ranks have
filling.py        weights from files in any layout, each rank's own
exporting.py      directories that transformers or peft load
forward.py        hidden states of a micro-batch, packed where the model allows it
attention.py      attention over packed micro-batches
varlen.py         the same by two calls of a variable-length kernel
fused_layers.py   decoder layers that run packed micro-batches through kernels
tied_embedding.py tokens looked up in an embedding that is the output's matrix too
records.py        micro-batches on the model's device
rows.py           rows by their numbers, with a gradient that is the same again
fingerprints.py   whether weights in two places are the same bits
"""

from paceline.models.activations import (
    is_recomputing,
    measure_activations,
    recompute,
)
from paceline.models.determinism import bits_hang_on
from paceline.models.exporting import export_model, save_model
from paceline.models.fingerprint import model_fingerprint, sampled_hash, tokenizer_fingerprint
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.loaded import Loaded
from paceline.models.loading import adopt_model, load_model, restore_weights
from paceline.models.lora import add_adapter, check_adapter_kind, make_lora_config
from paceline.models.records import on_device
from paceline.models.reference import frozen_copy, load_reference
from paceline.models.rope import fix_rope, rope_by_length
from paceline.models.rows import take_rows
from paceline.models.split_loading import load_policy, measure_by_twin

__all__ = [
    "Loaded",
    "PolicyForward",
    "add_adapter",
    "adopt_model",
    "bits_hang_on",
    "check_adapter_kind",
    "choose_forward",
    "export_model",
    "fix_rope",
    "frozen_copy",
    "load_model",
    "load_policy",
    "measure_by_twin",
    "load_reference",
    "model_fingerprint",
    "sampled_hash",
    "tokenizer_fingerprint",
    "make_lora_config",
    "measure_activations",
    "on_device",
    "recompute",
    "is_recomputing",
    "restore_weights",
    "rope_by_length",
    "take_rows",
    "save_model",
]
