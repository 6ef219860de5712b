"""What can be refused in a second, before the libraries that take many are loaded."""

from paceline.config import Config
from paceline.data import has_split, load_rows, system_prompt


def preflight(config: Config) -> None:
    """Look at the first row of each dataset and at the system message; the run reads all of it again.

    Raises:
        PacelineError: something that the configuration names is not there or cannot be read.
    """
    load_rows(config.data.dataset, split=config.data.dataset_split, size=1)
    if config.data.eval_dataset is not None:
        preflight_held_out(config)
    system_prompt(config.data, None)


def preflight_held_out(config: Config) -> None:
    """Look at the first held-out row.

    Raises:
        DataError: it is not there or cannot be read.
    """
    data = config.data
    dataset = data.eval_dataset or data.dataset
    split = data.eval_split if has_split(dataset, data.eval_split) else data.dataset_split
    load_rows(dataset, split=split, size=1)
