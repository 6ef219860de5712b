"""`make models-table`: two steps of a run with a tiny model of each family, for docs/models.md and its record."""

import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transformers
from torch import Tensor

from paceline.config.building import build_config
from paceline.errors import ModelError
from paceline.models.loaded import save_model
from paceline.models.plain_forward import plain_logits
from paceline.objective.micro_batches import pack
from paceline.training.backend import OneProcess, one_process
from paceline.training.learner.forward_backward import WholeModel
from paceline.training.learner.samples import samples_of
from paceline.training.setup.preparation import prepare
from paceline.types import RolloutGroup
from tests.support.families import FAMILIES, family, make_model
from tests.support.multimodal import TEXT_PARTS, multimodal_model, published_name
from tests.support.tiny import tiny_tokenizer

CHECKPOINTS = {published_name(name): name for name in TEXT_PARTS}
"""Rows of the table that are whole models which read images, of which the language model alone is loaded."""
NAMES = (*(known.name for known in FAMILIES), *CHECKPOINTS)
"""Rows of the table."""
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
RECORD = ROOT / "benchmarks" / "results" / "models.md"
LARGEST = 1e-4
"""Nats: what all differences of logprobs in float32 stay below."""
STEPS, PROMPTS, GENERATIONS = 2, 2, 4
ROWS = '{"question": "3 + 4", "answer": "7"}\n{"question": "12 + 30, and then half of it", "answer": "21"}\n'
REWARDS = "def varied(completion_ids, **columns):\n    return [sum(ids) % 7 / 7 for ids in completion_ids]\n"
HEAD = """# Models

Paceline tests any causal language model of transformers before it trains it. It compares the engine's decoder and the
trainer's forward pass with the model's own forward pass, over one row of tokens in evaluation mode. It uses the fastest
ways that agree, and refuses a model if none does. The start of a run prints the ways in use.

| engine | what it does |
|---|---|
| fused | layers that have a plan, in few operations; prompts computed once and shared, states forked from them |
| plain | the model's own forward pass with its own cache |
| recomputing | no cache: the whole context is computed again for each token, far slower |

| trainer | what it does |
|---|---|
| packed | prompts and completions end to end without padding, each prompt computed once, its states too |
| padded | rows of prompt and completion, padded to one length |

Each family below is its configuration's default, except for what stands after its name. `make models-table` makes a
model of about 50,000 random weights of each, trains it for {steps} steps of GRPO in float32, and writes this page (here
with transformers {version}). Engine, trainer and the model's own forward pass differed by at most {largest:.0e} nats,
which is rounding; [the record](../benchmarks/results/models.md) has every family's numbers.

A factor and a soft cap that a model puts on its logits (Cohere, Granite, Gemma 2) are measured when it is loaded, and
hold in training as in sampling. Of a checkpoint that also reads images or sound, published as
`...ForConditionalGeneration` (Gemma 3 and 4, Qwen3.5, Mistral Small, Ministral 3, Llama 4), the language model alone is
loaded, trained and written: `final/` is a causal language model, and its card says that it does not see. Such
checkpoints stand at the end of each row by the class that their config.json names.

Where prompts hold images the whole checkpoint is loaded, trained and written with its image settings. These are
served: Idefics 3, SmolVLM, LLaVA (with CLIP, SigLIP or Pixtral), LLaVA-OneVision (one image per prompt), Mistral 3,
InternVL, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, GLM-4V, Gemma 3 and Gemma 4. Before training, hidden states of two
prompts with images are compared with the model's own forward pass from pixels, and a model whose images are misread
is refused. Micro-batches are packed except where tokens of an image see each other (Gemma 3, and Gemma 4 with
`use_bidirectional_attention`). Images are resized by Pillow, on every device: other programs that resize by
torchvision give pixels that differ by rounding.

In bfloat16 the trainer's routers choose other experts than the engine's for some tokens, as both round in another
order, and a token's logprob then comes from other weights than it was sampled from. `--router-replay`, on by default
there, has the local engine note the choices for every token that it reads, keeps them with the rollouts, and trains
each token through them; routers compute in float32 besides. In [five tiny
families](../benchmarks/results/routes-tiny.json) 0.1 to 11 % of the choices differed, and replay cut the KL
divergence of engine and trainer (k3) by 4 to 160 times. A step reports `router_disagreement`, `expert_load_max` and
`experts_unused`. Each router chooses for itself where the choice is not known: with vLLM, a pipeline or
`rollout_func`, in the reference of `--beta`, and for phimoe, dbrx and longcat_flash.

| engine | trainer | families |
|---|---|---|
"""
REFUSED = """
## Refused

A model is refused before its weights are read if config.json gives the reason. Otherwise the test finds it, before a
run directory is created. The error says why, such as logits that follow from the hidden states by no scale and cap.

"""
RECORD_HEAD = """# Models: the full record behind [docs/models.md](../../docs/models.md)

Models have about 50,000 random weights, with windows shorter than the sequences. Each is trained for {steps} steps on
{prompts} prompts of different lengths with {generations} completions each.

*Mismatch* is the largest difference between the engine's logprobs and the trainer's (`logprob_mismatch_max`). *Own
pass* is the largest difference of engine, trainer or padded rows from the model's own forward pass. Both are in nats.

"""
TRAINED = "| family | engine | trainer | mismatch | own pass |\n|---|---|---|---|---|\n"
RECORD_REFUSED = "\n| family | when | error |\n|---|---|---|\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What came of a family's run."""

    engine: str
    learner: str
    mismatch: float
    off: float

    def row(self, name: str) -> str:
        """In the table."""
        return f"| {name} | {self.engine} | {self.learner} | {self.mismatch:.0e} | {self.off:.0e} |"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Why there was none."""

    when: str
    sentence: str

    def row(self, name: str) -> str:
        """In the table."""
        return f"| {name} | {self.when} | {self.sentence} |"


def tried(name: str, directory: Path) -> Trained | Refused:
    """Two steps of a run with one of `NAMES`, in an empty directory of its own."""
    model = directory / "model"
    if name in CHECKPOINTS:
        multimodal_model(CHECKPOINTS[name]).save_pretrained(model)
        tiny_tokenizer().save_pretrained(model)
    else:
        save_model(make_model(family(name)), tiny_tokenizer(), model, torch.float32)
    (directory / "rows.jsonl").write_text(ROWS)
    (directory / "rewards.py").write_text(REWARDS)
    options = {
        "model": str(model), "dataset": str(directory / "rows.jsonl"), "dtype": "float32", "device": "cpu",
        "reward_funcs": f"{directory / 'rewards.py'}:varied", "max_completion_length": "24", "max_prompt_length": "64",
        "prompts_per_step": str(PROMPTS), "num_generations": str(GENERATIONS), "max_steps": str(STEPS),
        "learning_rate": "1e-3", "concurrent_sequences": "6", "micro_batch_tokens": "128",
    }  # fmt: skip
    when = "before its weights are read"
    try:
        config = build_config(options)
        inputs = prepare(config)
        when = "before training"
        backend = one_process(config, inputs)
    except ModelError as error:
        return Refused(when=when, sentence=str(error).replace(str(model), "MODEL"))
    return _trained(backend)


def _trained(backend: OneProcess) -> Trained:
    mismatch, off = 0.0, 0.0
    for number in range(1, STEPS + 1):
        groups = backend.sampler.sample(backend.task_sampler.take, PROMPTS).groups
        off = max(off, _off(backend, groups))
        stats, _ = backend.trainer.update(number, groups)
        backend.engine.take_weights(backend.trainer.policy_version)
        assert stats.logprob_mismatch_max is not None
        mismatch = max(mismatch, stats.logprob_mismatch_max)
    learner = backend.trainer.learner.runner.forward.kind
    return Trained(engine=backend.engine.path, learner=learner, mismatch=mismatch, off=off)


def _off(backend: OneProcess, groups: tuple[RolloutGroup, ...]) -> float:
    """The largest difference from the model's own logprobs: of the engine, of the learner, of padded rows."""
    samples, policy, passes = samples_of(groups), backend.trainer.policy, backend.trainer.learner.runner
    batch = pack(samples, [0.0] * len(samples), range(len(samples)), dtype=torch.float32)
    rows = [(one.prompt_ids, one.completion_ids) for one in samples]
    own = torch.cat([_own_logprobs(backend, prompt, completion) for prompt, completion in rows])
    padded = WholeModel(forward=replace(passes.forward, kind="padded"), temperature=1.0)
    ways = [batch.rollout_logprobs, *(way.values(policy, [batch])[0][0] for way in (passes, padded))]
    return max(float((way - own).abs().max()) for way in ways)


def _own_logprobs(backend: OneProcess, prompt: tuple[int, ...], completion: tuple[int, ...]) -> Tensor:
    logits = plain_logits(backend.trainer.policy.model, torch.tensor(prompt + completion), torch.float32)
    targets = torch.tensor(completion)[:, None]
    return logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, targets)[:, 0]


def page(results: dict[str, Trained | Refused]) -> str:
    """The page of all families, grouped by how they are sampled and trained."""
    trained = {name: result for name, result in results.items() if isinstance(result, Trained)}
    groups: dict[tuple[str, str], list[str]] = {
        (engine, learner): [] for engine in ("fused", "plain", "recomputing") for learner in ("packed", "padded")
    }
    for name, result in trained.items():
        groups[result.engine, result.learner].append(name)
    head = HEAD.format(
        steps=STEPS,
        version=transformers.__version__,
        largest=max(max(result.mismatch, result.off) for result in trained.values()),
    )
    rows = [f"| {engine} | {way} | {'; '.join(names)} |" for (engine, way), names in groups.items() if names]
    refused = "; ".join(name for name, result in results.items() if isinstance(result, Refused))
    return head + "\n".join(rows) + "\n" + REFUSED + f"Refused are: {refused}.\n"


def record(results: dict[str, Trained | Refused]) -> str:
    """Every family's numbers, and the error of each that is refused."""
    head = RECORD_HEAD.format(steps=STEPS, prompts=PROMPTS, generations=GENERATIONS)
    rows = {
        kind: [result.row(name) for name, result in results.items() if isinstance(result, kind)]
        for kind in (Trained, Refused)
    }
    return head + TRAINED + "\n".join(rows[Trained]) + "\n" + RECORD_REFUSED + "\n".join(rows[Refused]) + "\n"


def read_record() -> dict[str, Trained | Refused]:
    """What the record says of each family."""
    results: dict[str, Trained | Refused] = {}
    for line in RECORD.read_text().splitlines():
        name, *cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        if len(cells) == 4 and name != "family":
            engine, learner, mismatch, off = cells
            results[name] = Trained(engine=engine, learner=learner, mismatch=float(mismatch), off=float(off))
        elif len(cells) == 2 and name != "family":
            results[name] = Refused(when=cells[0], sentence=cells[1])
    return results


def main(only: list[str]) -> int:
    """Try every family, or some by name without writing the page; status 1 if one trains on something else."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    found, is_right = dict[str, Trained | Refused](), True
    for name in only or NAMES:
        with tempfile.TemporaryDirectory(prefix="paceline-") as directory:
            found[name] = result = tried(name, Path(directory))
        is_right &= isinstance(result, Refused) or max(result.mismatch, result.off) <= LARGEST
        print(result.row(name), flush=True)
    if not only:
        PAGE.write_text(page(found))
        RECORD.write_text(record(found))
        print(f"page    {PAGE}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
