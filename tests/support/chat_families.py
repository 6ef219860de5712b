"""Families of chat models for tests of conversations: templates, control tokens and end tokens, small vocabularies.

PACELINE_TEST_TEMPLATES names a folder of templates to hold the laws to instead, under the names of
`tests/support/templates`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import paceline
from paceline.chat.turns import TurnTokens

HERE = Path(__file__).parent / "templates"
FOLDER = Path(os.environ.get("PACELINE_TEST_TEMPLATES", HERE))
EMBEDDED = Path(paceline.__file__).parent / "models" / "embedded"

TEXT = """How many apples are there? There are 12 apples, and 30 more.\n\nSo the answer is 42.\n
    def add(x, y):\n        return x + y\n\n{"name": "lookup", "arguments": {"key": "apples"}}\n{"key": "x"}}
"content": "4", user assistant system tool model think the the the there their then answer answers\n\n\n 1000 2000 12 34
"""
"""Text of which the merges are learned: enough that words, blanks and breaks have tokens of more than a byte."""


WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What no token reaches across, as in Llama 3 and Qwen: breaks stay apart from the word behind them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What distinguishes the tokenizers of a family."""

    name: str
    template: str
    """File of the chat template, without its ending."""
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    """Added tokens that are not special."""
    stops: tuple[str, ...]
    """End tokens, the template's own first."""
    bos: str | None = None
    adds_bos: bool = False
    """True if encoding puts the start token first, as the template does."""
    enable_thinking: bool | None = None
    shows_tools: bool
    """True if its template shows tools, calls and results."""
    keeps: bool
    """True if its template keeps earlier turns, of all kinds."""
    one_call: bool = False
    """True if its template takes one call a turn."""
    has_system: bool = True
    """True if its template takes a system message."""

    @property
    def switches(self) -> dict[str, object]:
        """What its template is given beside messages and tools."""
        return {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN = {
    "special": CHATML,
    "added": ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    "stops": ("<|im_end|>", "<|endoftext|>"),
    "shows_tools": True,
}
LLAMA = {
    "special": (
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
        "<|python_tag|>",
    ),
    "stops": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    "bos": "<|begin_of_text|>", "adds_bos": True, "shows_tools": True, "keeps": True, "one_call": True,
}  # fmt: skip

FAMILIES = (
    Family(name="qwen2.5", template="qwen2_5", **QWEN, keeps=True),
    Family(name="qwen3", template="qwen3", **QWEN, keeps=False),
    Family(name="qwen3-without-thinking", template="qwen3", **QWEN, keeps=False, enable_thinking=False),
    Family(name="llama3.1", template="llama3_1", **LLAMA),
    Family(name="llama3.2", template="llama3_2", **LLAMA),
    Family(
        name="mistral",
        template="mistral_v3",
        special=("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
                 "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        stops=("</s>",),
        bos="<s>",
        adds_bos=True,
        shows_tools=True,
        keeps=False,
    ),
    Family(
        name="gemma3",
        template="gemma3",
        special=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        added=("<h1>", "</h1>", "\n\n", "    "),
        stops=("<end_of_turn>", "<eos>"),
        bos="<bos>",
        adds_bos=True,
        shows_tools=False,
        keeps=True,
    ),
    Family(
        name="smollm2", template="smollm2", special=CHATML, stops=("<|im_end|>",), bos="<|im_start|>",
        shows_tools=False, keeps=True,
    ),
    Family(
        name="chatml", template="chatml", special=CHATML, stops=("<|im_end|>", "<|endoftext|>"), shows_tools=False,
        keeps=True,
    ),
    Family(
        name="embedded", template="", special=(), stops=("<|end|>",), shows_tools=False, keeps=True,
    ),
)  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look a word up.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": "The word."}},
                "required": ["key"],
            },
        },
    },
)


@cache
def _vocabulary() -> str:
    """Byte-level BPE with merges, as JSON: trained once."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return tokenizer.to_str()


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """The family's tokenizer; nobody changes it."""
    family = BY_NAME[name]
    if name == "embedded":
        return AutoTokenizer.from_pretrained(EMBEDDED)
    return tokenizer_with(family, (FOLDER / f"{family.template}.jinja").read_text(encoding="utf-8"))


def tokenizer_with(family: Family, template: str | Mapping[str, str]) -> PreTrainedTokenizerFast:
    """A tokenizer with the control tokens of a family and a chat template of any kind."""
    tokenizer = Tokenizer.from_str(_vocabulary())
    tokenizer.add_special_tokens(list(family.special))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.added])
    if family.adds_bos:
        start = (family.bos, tokenizer.token_to_id(family.bos))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", special_tokens=[start])
    given = {} if family.bos is None else {"bos_token": family.bos}
    eos = "<eos>" if family.name == "gemma3" else family.stops[0]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, **given)
    fast.chat_template = template
    return fast


def stop_ids_of(name: str) -> frozenset[int]:
    """Ids of the family's end tokens."""
    return frozenset(tokenizer_of(name).convert_tokens_to_ids(list(BY_NAME[name].stops)))


@cache
def turn_tokens(name: str, *, has_tools: bool = True, history: str = "auto") -> TurnTokens:
    """The tokens between turns of the family."""
    return TurnTokens(
        tokenizer_of(name),
        tools=TOOLS if has_tools else (),
        switches=BY_NAME[name].switches,
        stop_ids=stop_ids_of(name),
        history=history,
    )
