"""The program of a card: it loads the directory that the card lies in, and asks the model as training asked it."""

import json

from paceline.reports.model_card.facts import CardFacts

QUESTION = "What is 12 + 30?"
CLASSES = {False: ("transformers", "AutoModelForCausalLM"), True: ("peft", "AutoPeftModelForCausalLM")}
"""Whether it is an adapter, to library and class."""


def loading_program(facts: CardFacts) -> str:
    """Python; nothing of it hangs on where the directory lies."""
    library, loader = CLASSES[facts.is_adapter]
    imports = sorted([f"from {library} import {loader}", "from transformers import AutoTokenizer"])
    if not facts.is_adapter:
        imports = [f"from transformers import {loader}, AutoTokenizer"]
    length = facts.config.sampling.max_completion_length
    lines = [
        *imports,
        "",
        'folder = "."  # the directory of this card, or the name that it has on the Hub',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {loader}.from_pretrained(folder)",
        *_prompt(facts),
        f"output = model.generate(**prompt, max_new_tokens={length}, do_sample=False)",
        'print(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    return "\n".join(lines)


def _prompt(facts: CardFacts) -> list[str]:
    if not facts.prompting.has_chat_template:
        return [f'prompt = tokenizer("{QUESTION}", return_tensors="pt")']
    system = [] if facts.prompting.system is None else [{"role": "system", "content": facts.prompting.system}]
    messages = [*system, {"role": "user", "content": QUESTION}]
    thinking = facts.config.data.enable_thinking
    switch = "" if thinking is None else f", enable_thinking={thinking}"
    return [
        "messages = [",
        *(f"    {json.dumps(message, ensure_ascii=False)}," for message in messages),
        "]",
        "prompt = tokenizer.apply_chat_template(",
        f'    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True{switch}',
        ")",
    ]
