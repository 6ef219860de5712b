"""A tokenizer's files, the same in every checkpoint of a run."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from paceline.checkpoints.digests import files


class TokenizerFiles:
    """They are made once: for a vocabulary of 150,000 words a tokenizer takes 0.15 s, and is not for two threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Of a tokenizer that stays as it is."""
        self._tokenizer = tokenizer
        self._content = dict[str, bytes]()

    def write(self, folder: Path) -> None:
        """Write them into an empty directory.

        Raises:
            OSError: they cannot be written.
        """
        if not self._content:
            self._tokenizer.save_pretrained(folder)
            self._content = {name: (folder / name).read_bytes() for name in files(folder)}
            return
        for name, content in self._content.items():
            (folder / name).parent.mkdir(exist_ok=True)  # for more than one chat template
            (folder / name).write_bytes(content)
