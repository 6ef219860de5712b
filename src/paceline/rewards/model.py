"""A sequence-classification model as a reward function: its one logit is the reward.

B completions, L tokens of prompt and completion together, right-padded.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from paceline.base_directory import local_path
from paceline.chat.thinking import prefill
from paceline.errors import RewardError, first_line
from paceline.rewards.model_files import check_reward_model

PADDED_TOKENS = 16_384  # Tokens of one forward pass, padding included

Messages = Sequence[Mapping[str, object]]


class RewardModel:
    """Scores each completion with the first logit of a sequence-classification model.

    The model reads the messages of the prompt, with the completion as the assistant's message, in the chat template of
    its tokenizer; without messages or template, the text of the prompt and the completion after it. A row longer than
    the model's positions is a failure of that row: nothing is cut.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, padded_tokens: int = PADDED_TOKENS
    ) -> None:
        """`padded_tokens` bounds a forward pass, unless a single row is longer.

        Raises:
            RewardError: the model has more than one label, or there is no token to pad with.
        """
        config = model.config
        if config.num_labels != 1:
            raise RewardError(
                f"reward model {_name(model)} has {config.num_labels} labels, but a reward is one number; "
                "load it with num_labels=1, or wrap it in a reward function that picks one"
            )
        model.train(False)
        self._model, self.tokenizer, self._padded_tokens = model, tokenizer, padded_tokens
        self._num_embeddings = int(_embedding(model).shape[0])
        text_config = config.get_text_config()
        self._max_length: int | None = getattr(text_config, "max_position_embeddings", None)
        # The model's own padding token, else the tokenizer's, else the end token.
        candidates = (text_config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
        pad_ids = [
            int(token_id) for token_id in candidates if token_id is not None and 0 <= token_id < self._num_embeddings
        ]
        if not pad_ids:
            raise RewardError(
                f"reward model {_name(model)} has no token to pad with: neither a padding nor an end token; "
                "set pad_token in its tokenizer_config.json"
            )
        # The model finds the last token of a row as the last one that is not this.
        self._pad_id = text_config.pad_token_id = pad_ids[0]

    def __call__(
        self, *, prompts: list[str], completions: list[str], prompt_messages: list[Messages | None]
    ) -> list[float | RewardError]:
        """Return one score per completion, or the reason why its text cannot be scored."""
        rows = [self._token_ids(*row) for row in zip(prompts, completions, prompt_messages, strict=True)]
        refused = {index: why for index, ids in enumerate(rows) if (why := self._refusal(ids)) is not None}
        scores: dict[int, float | RewardError] = {**refused}
        lengths = {index: len(ids) for index, ids in enumerate(rows) if index not in refused}
        for indices in batches(lengths, limit=self._padded_tokens):
            scores.update(zip(indices, self._scores([rows[index] for index in indices]), strict=True))
        return [scores[index] for index in range(len(rows))]

    def _token_ids(self, prompt: str, completion: str, messages: Messages | None) -> list[int]:
        opened = prefill(prompt)
        if messages is not None and self.tokenizer.chat_template is not None:
            conversation: list[Any] = [*map(dict, messages), {"role": "assistant", "content": opened + completion}]
            text = self.tokenizer.apply_chat_template(conversation, tokenize=False)
            add_special_tokens = False
        else:
            text = prompt + completion
            bos = self.tokenizer.bos_token
            add_special_tokens = not (bos and text.startswith(bos))
        return list(self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])

    def _refusal(self, ids: list[int]) -> RewardError | None:
        if self._max_length is not None and len(ids) > self._max_length:
            return RewardError(
                f"prompt and completion have {len(ids)} tokens, above the {self._max_length} positions of the reward "
                "model; lower --max-completion-length or --max-prompt-length"
            )
        if max(ids, default=0) >= self._num_embeddings:
            return RewardError(
                f"the tokenizer gives token {max(ids)}, but the reward model has {self._num_embeddings} embeddings; "
                "give the tokenizer that the model was trained with"
            )
        return None if ids else RewardError("prompt and completion have no tokens; remove the row")

    @torch.inference_mode()
    def _scores(self, rows: Sequence[list[int]]) -> list[float]:
        longest = max(map(len, rows))
        padded = [ids + [self._pad_id] * (longest - len(ids)) for ids in rows]
        mask = [[1] * len(ids) + [0] * (longest - len(ids)) for ids in rows]
        device = _embedding(self._model).device
        logits = self._model(
            input_ids=torch.tensor(padded, device=device), attention_mask=torch.tensor(mask, device=device)
        ).logits
        return [float(score) for score in logits[:, 0].float().tolist()]


def batches(lengths: Mapping[int, int], *, limit: int) -> Iterator[list[int]]:
    """Yield batches of row indices, longest rows first, with rows times longest row at most `limit`.

    >>> list(batches({0: 2, 1: 5, 2: 4, 3: 9}, limit=10))
    [[3], [1, 2], [0]]
    """
    batch: list[int] = []
    for index in sorted(lengths, key=lambda index: (-lengths[index], index)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > limit:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def load_reward_model(
    name: str, *, device: torch.device, tokenizer: PreTrainedTokenizerBase | None = None
) -> RewardModel:
    """Load a reward model from a directory or the Hub: float32 on a CPU, bfloat16 on CUDA, without gradients.

    `tokenizer` None: the tokenizer in the model's directory.

    Raises:
        RewardError: no such model, unreadable weights, more than one label, or no trained score head.
    """
    check_reward_model(name)
    source = str(path) if (path := local_path(name)).is_dir() else name
    dtype = torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(source) if tokenizer is None else tokenizer
        # A head of another size is reported, not raised, so that it is refused by our sentence.
        model, report = AutoModelForSequenceClassification.from_pretrained(
            source,
            num_labels=1,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RewardError(f"--reward-funcs model:{name} cannot be loaded: {first_line(error)}") from error
    # transformers fills what a checkpoint lacks with random numbers; a random head would reward noise.
    if report["missing_keys"]:
        raise RewardError(
            f"--reward-funcs model:{name} has no trained score head ({_first(report['missing_keys'])} is not in its "
            "weights); name a sequence-classification model that was trained to give rewards"
        )
    if report["mismatched_keys"]:
        raise RewardError(
            f"--reward-funcs model:{name} does not have one label ({_first(report['mismatched_keys'])} has another "
            "shape), but a reward is one number; name a model with one label, or wrap it in a reward function"
        )
    return RewardModel(model.to(device).requires_grad_(False), tokenizer)


def _first(keys: object) -> str:
    first = sorted(keys, key=str)[0]  # type: ignore[call-overload]
    return first if isinstance(first, str) else str(first[0])


def _embedding(model: PreTrainedModel) -> Tensor:
    return cast(Tensor, model.get_input_embeddings().weight)


def _name(model: PreTrainedModel) -> str:
    return str(model.config.name_or_path or type(model).__name__)
