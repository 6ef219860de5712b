"""The models that ship with the package: what each is called and where it lies.

A directory holds a model, its tokenizer and `recipe.yaml`, the options with which it learns.
"""

from collections.abc import Mapping

DEFAULT = "embedded"
"""The one that a command takes when it is given neither a model nor a configuration file."""
DIRECTORIES: Mapping[str, str] = {"embedded": "embedded", "embedded-programs": "embedded/programs"}
"""From the name of a model to its directory, relative to this file's own."""
RECIPE = "recipe.yaml"
"""The file with the options, in each of the directories."""
