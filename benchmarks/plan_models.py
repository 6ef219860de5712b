"""Writes a model with random weights and the embedded model's tokenizer: python plan_models.py SHAPE DIRECTORY"""

import sys
from pathlib import Path

from materials import SHAPES, write_model

from paceline.config.sections import ModelConfig
from paceline.models.pretrained import load_tokenizer

write_model(SHAPES[sys.argv[1]], Path(sys.argv[2]))
load_tokenizer(ModelConfig(model="embedded")).save_pretrained(sys.argv[2])
