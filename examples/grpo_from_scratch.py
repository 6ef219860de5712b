"""GRPO from scratch: the whole algorithm on one page, with plain transformers and Paceline's pure functions.

    python examples/grpo_from_scratch.py
    python examples/grpo_from_scratch.py --model Qwen/Qwen2.5-1.5B-Instruct --dataset openai/gsm8k:main \
        --batch-size 7 --num-generations 12 --max-completion-length 400 --learning-rate 5e-6 --num-steps 500

The first teaches the small model in the package to finish its arithmetic, on one CPU core in under a minute. Names are
those of the well-known notebook; `paceline train` adds a fast engine, packed batches, checkpoints and reports.
"""

import argparse
import copy
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers import PreTrainedModel as Model
from transformers import PreTrainedTokenizerBase as Tokenizer

import paceline
from paceline.data.sources import has_split, load_rows
from paceline.kernels.logprobs import token_logprobs
from paceline.metrics.statistics import wilson
from paceline.objective.advantages import advantages
from paceline.objective.policy_loss import clipped_policy_loss, kl_penalty

EMBEDDED = str(Path(paceline.__file__).parent / "models" / "embedded")
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
SYSTEM_PROMPT = "Respond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>"

Example = dict[str, str]  # `prompt`: the text that the model reads; `answer`: the gold answer
RewardFunction = Callable[..., list[float]]  # `paceline train --reward-funcs FILE:NAME` takes one of these too


def set_random_seed(seed: int = 42) -> None:
    """Fix Python's and torch's random numbers, those of GPUs included."""
    random.seed(seed)
    torch.manual_seed(seed)


def extract_answer_from_dataset(text: str) -> str | None:
    """What stands after `####`, as in GSM8K, without thousands separators; None without the mark."""
    _, mark, answer = text.rpartition("####")
    return answer.strip().replace(",", "") if mark else None


def build_prompt(messages: Sequence[dict[str, str]], tokenizer: Tokenizer) -> str:
    """The conversation in the model's own format: a chat model that reads bare lines runs on past its answer."""
    if tokenizer.chat_template is None:
        return "\n".join(message["content"].strip() for message in messages)
    return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)


def prepare_dataset(dataset: str, split: str, tokenizer: Tokenizer, system_prompt: str, size=None) -> list[Example]:
    """Rows with the columns question and answer, as prompts; a row that lacks one ends the program."""
    examples = []
    for row in load_rows(dataset, split=split, size=size):
        values = (row.columns.get(name) for name in ("question", "answer"))
        question, answer = ("" if value is None else str(value).strip() for value in values)
        if not question or not answer:
            raise SystemExit(f"row {row.row_id}: must have a question and an answer; add them or remove the row")
        messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": question}]
        prompt = build_prompt(messages if system_prompt else messages[1:], tokenizer)
        examples.append({"prompt": prompt, "answer": extract_answer_from_dataset(answer) or answer})
    return examples


def extract_answer_from_model_output(text: str) -> str | None:
    """The text in the last complete pair of answer tags; None without one, or if it holds nothing but dots."""
    found = re.findall(r"<answer>((?:(?!<answer>).)*?)</answer>", text, flags=re.DOTALL)
    answer = found[-1].strip() if found else ""
    return answer if answer.strip(".") else None


def extract_single_number(text: str) -> float | None:
    """The number in the text if there is exactly one."""
    numbers = re.findall(r"-?\d*\.?\d+", text)
    return float(numbers[0]) if len(numbers) == 1 else None


def correctness_reward(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """2.0 for the gold answer itself, 1.5 for the same single number, else 0.0, also where no answer is given."""
    rewards = []
    for given, gold in zip(map(extract_answer_from_model_output, completions), answer, strict=True):
        number = extract_single_number(given or "")
        same_number = number is not None and number == extract_single_number(gold)
        rewards.append(0.0 if given is None else 2.0 if given == gold else 1.5 if same_number else 0.0)
    return rewards


def format_reward(completions: Sequence[str], **columns: object) -> list[float]:
    """0.2 for each of the four tags that stands after those before it: out of order they earn nothing."""
    rewards = []
    for completion in completions:
        place, reward = 0, 0.0
        for tag in TAGS:
            if (found := completion.find(tag, place)) >= 0:
                place, reward = found + len(tag), reward + 0.2
        rewards.append(reward)
    return rewards


def combined_reward(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Correctness and format together, 0.0 to 2.8."""
    return [sum(both) for both in zip(correctness_reward(completions, answer), format_reward(completions), strict=True)]


# Tensors: R rollouts, L prompt tokens padded on the left, T completion tokens padded on the right
def create_completion_mask(completion_ids: Tensor, eos_token_ids: Sequence[int]) -> Tensor:
    """[R, T] True up to and including the first end token: to stop is learned too."""
    is_end = torch.isin(completion_ids, torch.tensor(eos_token_ids, device=completion_ids.device))
    return is_end.cumsum(dim=1) - is_end.long() == 0


@torch.no_grad()
def generate_completions(
    model: Model, tokenizer: Tokenizer, prompts: Sequence[str], num_generations: int, max_length: int, sample=True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompts and their masks [R, L], completions and their masks [R, T]; R = len(prompts) * num_generations."""
    model.eval()
    raw = tokenizer.chat_template is None  # a chat template has written the special tokens already
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left", add_special_tokens=raw)
    inputs = inputs.to(model.device)
    ids, mask = (inputs[name].repeat_interleave(num_generations, 0) for name in ("input_ids", "attention_mask"))
    # A chat model often has more end tokens than its tokenizer names.
    named = model.generation_config.eos_token_id
    ends = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named] if named is not None else [])]
    # Its defaults may also change the distribution, and the loss is about the whole one.
    whole = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}
    whole |= {"do_sample": sample, "repetition_penalty": 1.0, "max_new_tokens": max_length}
    config = GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, **whole)
    completions = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, ids.shape[1] :]
    return ids, mask, completions, create_completion_mask(completions, ends)


def completion_texts(tokenizer: Tokenizer, completions: Tensor, mask: Tensor) -> list[str]:
    """The completions alone: an answer in the prompt must not count."""
    return [tokenizer.decode(ids[kept], skip_special_tokens=True) for ids, kept in zip(completions, mask, strict=True)]


def selective_log_softmax(hidden: Tensor, head: Tensor, token_ids: Tensor) -> Tensor:
    """[R, T] entries of log softmax(hidden @ head.T), in nats; the R * T * V logits exist a few rows at a time."""
    return token_logprobs(hidden.flatten(0, 1), head, token_ids.flatten(), temperature=1.0)[0].view(token_ids.shape)


def compute_log_probs(model: Model, input_ids: Tensor, attention_mask: Tensor, num_tokens: int) -> Tensor:
    """[R, T] log-probabilities of the last `num_tokens` tokens; the hidden state before a token predicts it."""
    # Mask and positions keep left padding out: without them a prompt's logits depend on its neighbours.
    positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    output = model.base_model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions)
    hidden = output.last_hidden_state[:, -num_tokens - 1 : -1]
    return selective_log_softmax(hidden, model.get_output_embeddings().weight, input_ids[:, -num_tokens:])


class RolloutData(NamedTuple):
    """What one step learns from, settled once however many updates follow; every field has R rows."""

    input_ids: Tensor
    attention_mask: Tensor
    completion_mask: Tensor
    old_log_probs: Tensor
    ref_log_probs: Tensor
    advantages: Tensor
    rewards: Tensor


@torch.no_grad()
def generate_rollout_data(
    model: Model, ref_model: Model | None, tokenizer: Tokenizer, batch: Sequence[Example], num_generations: int,
    max_completion_length: int, reward_function: RewardFunction,
) -> RolloutData:  # fmt: skip
    """Sample, score once, compare within each group, and note what policy and reference think of every token."""
    prompt_ids, prompt_mask, completion_ids, completion_mask = generate_completions(
        model, tokenizer, [one["prompt"] for one in batch], num_generations, max_completion_length
    )
    repeated = [one for one in batch for _ in range(num_generations)]
    columns = {"prompts": [one["prompt"] for one in repeated], "answer": [one["answer"] for one in repeated]}
    rewards = reward_function(completions=completion_texts(tokenizer, completion_ids, completion_mask), **columns)
    groups = [rewards[start : start + num_generations] for start in range(0, len(rewards), num_generations)]
    worth = [value for group in advantages(groups, kind="group") for value in group]
    ids = torch.cat([prompt_ids, completion_ids], dim=1)
    mask = torch.cat([prompt_mask, completion_mask.long()], dim=1)
    old = compute_log_probs(model, ids, mask, completion_ids.shape[1])
    reference = old if ref_model is None else compute_log_probs(ref_model, ids, mask, completion_ids.shape[1])
    numbers = (torch.tensor(values, dtype=torch.float32, device=ids.device) for values in (worth, rewards))
    return RolloutData(ids, mask, completion_mask, old, reference, *numbers)


def grpo_loss(log_probs: Tensor, rollouts: RolloutData, *, beta: float, epsilon: float, num_tokens: int) -> Tensor:
    """This micro-batch's share of the step's loss: clipped surrogate plus beta times the KL from the reference.

    Over the tokens of the whole step, so that the gradient does not depend on how the step is cut. The penalty has the
    gradient of KL(policy || reference); the notebook's estimator, k3, has that of KL(reference || policy).
    """
    mask = rollouts.completion_mask
    new, old, reference = log_probs[mask], rollouts.old_log_probs[mask], rollouts.ref_log_probs[mask]
    worth = rollouts.advantages[:, None].expand(mask.shape)[mask]
    losses = clipped_policy_loss(torch.exp(new - old), worth, clip_eps_low=epsilon, clip_eps_high=epsilon)
    return (losses + beta * kl_penalty(new, old, reference, kl="reverse")).sum() / num_tokens


def optimize_model_memory(model: Model) -> Model:
    """Compute activations again in the backward pass instead of keeping them."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def batches(train_data: Sequence[Example], batch_size: int, count: int) -> Iterator[list[Example]]:
    """Every example once before any comes again."""
    order: list[Example] = []
    for _ in range(count):
        while len(order) < batch_size:
            order += random.sample(train_data, len(train_data))
        yield order[:batch_size]
        del order[:batch_size]


def train_with_grpo(  # noqa: PLR0913 - the notebook's call, name by name
    model: Model, tokenizer: Tokenizer, train_data: Sequence[Example], num_iterations: int = 1, num_steps: int = 500,
    batch_size: int = 4, num_generations: int = 4, max_completion_length: int = 128, beta: float = 0.1,
    learning_rate: float = 5e-6, mu: int = 3, epsilon: float = 0.2, reward_function: RewardFunction = combined_reward,
    device_ids: Sequence[int] | None = None, micro_batch_size: int = 32, max_grad_norm: float = 1.0,
) -> Model:  # fmt: skip
    """`num_iterations` times a new reference, then `num_steps` batches of rollouts with `mu` updates each."""
    if device_ids and len(device_ids) > 1:  # the notebook takes several, and trains on one
        raise ValueError(f"device_ids must name one GPU, got {list(device_ids)}; give device_ids[:1]")
    # Not bfloat16: nearly all steps of this size would round to nothing there.
    model = model.float().to(torch.device("cuda", device_ids[0]) if device_ids else model.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    for iteration in range(num_iterations):
        ref_model = copy.deepcopy(model).eval() if beta > 0 else None
        for step, batch in enumerate(batches(train_data, batch_size, num_steps), start=1):
            sizes = (num_generations, max_completion_length)
            data = generate_rollout_data(model, ref_model, tokenizer, batch, *sizes, reward_function)
            num_tokens = int(data.completion_mask.sum())
            model.train()
            for _ in range(mu):
                for part in map(RolloutData._make, zip(*(one.split(micro_batch_size) for one in data), strict=True)):
                    new = compute_log_probs(model, part.input_ids, part.attention_mask, part.completion_mask.shape[1])
                    grpo_loss(new, part, beta=beta, epsilon=epsilon, num_tokens=num_tokens).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
            print(f"iteration {iteration + 1} step {step}/{num_steps}: average reward {data.rewards.mean():.3f}")
    return model


def evaluate_model(model: Model, tokenizer: Tokenizer, eval_examples: Sequence[Example], max_length: int) -> float:
    """Percentage of held-out examples whose most probable completion is right: the same number every time."""
    correct, total = 0, len(eval_examples)
    for part in (eval_examples[start : start + 64] for start in range(0, total, 64)):
        prompts, answers = ([one[key] for one in part] for key in ("prompt", "answer"))
        _, _, ids, mask = generate_completions(model, tokenizer, prompts, 1, max_length, sample=False)
        correct += sum(reward > 0 for reward in correctness_reward(completion_texts(tokenizer, ids, mask), answers))
    share = wilson(correct, total)
    print(f"Accuracy: {share.value:.2%} ({correct}/{total}), 95 % interval {share.low:.1%} to {share.high:.1%}")
    return 100 * share.value


def main() -> None:
    """Evaluate, train, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EMBEDDED, help="directory or Hub name (default: the model in the package)")
    parser.add_argument("--dataset", default="arithmetic", help="a file or Hub name; its rows have question and answer")
    parser.add_argument("--system-prompt", default=SYSTEM_PROMPT, help="not for the package's own model")
    parser.add_argument("--output-dir", help="where the trained model goes (default: nowhere)")
    parser.add_argument("--eval-size", type=int, default=300, help="held-out examples")
    parser.add_argument("--seed", type=int, default=42)
    settings = {"num_iterations": 1, "num_steps": 40, "batch_size": 16, "num_generations": 8}
    settings |= {"max_completion_length": 64, "beta": 0.0, "learning_rate": 1e-4, "mu": 1, "epsilon": 0.2}
    for name, value in settings.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default: {value}")
    options = parser.parse_args()
    set_random_seed(options.seed)
    torch.set_num_threads(1 if options.model == EMBEDDED else torch.get_num_threads())  # several wait for each other
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    if torch.cuda.is_available():
        model = optimize_model_memory(model.cuda())
    system = "" if options.model == EMBEDDED else options.system_prompt
    examples = prepare_dataset(options.dataset, "train", tokenizer, system)
    if has_split(options.dataset, "test"):
        held_out = prepare_dataset(options.dataset, "test", tokenizer, system, size=options.eval_size)
    else:
        random.shuffle(examples)
        held_out, examples = examples[: options.eval_size], examples[options.eval_size :]
    evaluate_model(model, tokenizer, held_out, options.max_completion_length)
    train_with_grpo(model, tokenizer, examples, **{name: getattr(options, name) for name in settings})
    evaluate_model(model, tokenizer, held_out, options.max_completion_length)
    for part in (model, tokenizer) if options.output_dir else ():
        part.save_pretrained(options.output_dir)


if __name__ == "__main__":
    main()
