"""An adapter trains alone, samples as part of the model, and exports to what peft and transformers load."""

import copy
import re
import sys
import warnings

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from paceline.checkpoints.finding import TrainingState
from paceline.checkpoints.optimizer_state import load_optimizer
from paceline.checkpoints.saving import TokenizerFiles
from paceline.cli.main import main
from paceline.config.objective import LossConfig, OptimConfig
from paceline.config.sections import LoraConfig, ModelConfig
from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.engine import LocalEngine
from paceline.errors import ModelError
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded, export_model, save_model
from paceline.models.loading import adopt_model, load_model, restore_weights
from paceline.models.policy_and_reference import frozen_copy, load_reference
from paceline.models.pretrained import context_length, load_tokenizer
from paceline.training.learner.learner import Learner
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed
from tests.support.checkpoint_files import save_checkpoint
from tests.support.tiny import tiny_model, tiny_tokenizer

RANK = LoraConfig(lora_rank=4)
TOKENS = torch.tensor([[1, 2, 3, 5, 8, 13, 21]])
KINDS = ("qwen2", "qwen3", "llama")


@pytest.fixture
def base(tmp_path) -> ModelConfig:
    """A model on disk."""
    return write_model(tmp_path / "base")


def write_model(path, kind="qwen3", **options) -> ModelConfig:
    save_model(tiny_model(kind), tiny_tokenizer(), path, torch.float32)
    return ModelConfig(model=str(path), **options)


def moved(loaded: Loaded, *, seed: int = 1) -> Loaded:
    """The model with an adapter that changes what it computes, as after training."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws))
    return loaded


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(TOKENS).logits


def adapter_of(loaded: Loaded) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in loaded.model.named_parameters() if p.requires_grad}


def frozen_of(loaded: Loaded) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in loaded.model.named_parameters() if not p.requires_grad}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def group() -> RolloutGroup:
    rollouts = tuple(
        Rollout(
            trajectory=completed(
                tuple(b"ask"),
                Completion(
                    token_ids=tuple(text),
                    logprobs=(0.0,) * len(text),
                    finish_reason="stop",
                    text=text.decode(),
                    policy_version=0,
                ),
            ),
            rewards={},
            reward=1.0,
            advantage=advantage,
        )
        for text, advantage in ((b"good", 1.0), (b"bad", -1.0))
    )
    return RolloutGroup(task=Task(task_id="0", prompt="ask", prompt_ids=tuple(b"ask"), answer=None), rollouts=rollouts)


def learner(loaded: Loaded, *, beta: float = 0.0, reference: Loaded | None = None) -> Learner:
    return Learner(
        loaded,
        choose_forward(loaded.model),
        reference=reference,
        loss=LossConfig(beta=beta),
        optim=OptimConfig(),
        temperature=1.0,
        max_completion_length=8,
    )


def local_engine(loaded: Loaded) -> LocalEngine:
    return LocalEngine(
        loaded.model,
        tiny_tokenizer(),
        concurrent_sequences=8,
        compute_dtype=loaded.compute_dtype,
        eos_token_ids=frozenset([258]),
    )


def requests() -> list[Request]:
    keys = tuple(sample_key(5, "test", "0", 0, sample) for sample in range(3))
    return [Request(prompt_ids=tuple(b"a prompt"), keys=keys), Request(prompt_ids=tuple(b"one more"), keys=keys[:1])]


def test_a_fresh_adapter_changes_nothing_and_is_all_that_is_trainable(base):
    plain, loaded = load_model(base), load_model(base, RANK)
    assert torch.equal(logits(loaded.model), logits(plain.model))
    trainable = adapter_of(loaded)
    assert len(trainable) == 2 * 7 * 2  # two matrices on seven linear layers in each of two decoder layers
    assert all("lora_" in name for name in trainable)
    assert {tensor.dtype for tensor in trainable.values()} == {torch.float32}
    assert loaded.adapter.active_peft_config.lora_alpha == 8


def test_the_random_start_depends_on_the_seed_alone(base):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = adapter_of(load_model(base, RANK))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(first, adapter_of(load_model(base, RANK)))
    assert not same(first, adapter_of(load_model(base, RANK, seed=1)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_moves_the_adapter_and_leaves_every_other_weight_bit_for_bit(tmp_path, kind, checkpointing):
    config = write_model(tmp_path / "base", kind, gradient_checkpointing=str(checkpointing).lower())
    loaded = load_model(config, RANK)
    half = learner(loaded)
    adapter, frozen = adapter_of(loaded), frozen_of(loaded)
    assert half.runner.forward.kind == "packed"
    half.step([group()], learning_rate=1e-3)
    assert same(frozen, frozen_of(loaded))
    after = adapter_of(loaded)
    assert all(not torch.equal(after[name], adapter[name]) for name in adapter if "lora_B" in name)
    assert all(parameter.grad is None for parameter in loaded.model.parameters() if not parameter.requires_grad)


def test_checkpointed_activations_give_the_same_gradient(tmp_path):
    after = []
    for checkpointing in ("false", "true"):
        loaded = moved(load_model(write_model(tmp_path / "base", gradient_checkpointing=checkpointing), RANK))
        learner(loaded).step([group()], learning_rate=1e-3)
        after.append(adapter_of(loaded))
    for name in after[0]:
        assert torch.allclose(after[0][name], after[1][name], atol=1e-6), name


def test_without_its_adapter_the_model_is_exactly_the_base(base):
    plain, loaded = load_model(base), moved(load_model(base, RANK))
    with loaded.without_adapter():
        assert torch.equal(logits(loaded.model), logits(plain.model))
    assert not torch.equal(logits(loaded.model), logits(plain.model))
    assert len(adapter_of(loaded)) == 28
    with plain.without_adapter():
        assert torch.equal(logits(plain.model), logits(load_model(base).model))


def test_the_reference_under_an_adapter_is_the_model_without_it(base):
    loaded = moved(load_model(base, RANK))
    reference = load_reference(loaded, base)
    assert reference is loaded
    assert frozen_copy(loaded) is loaded
    alone = load_reference(load_model(base), base)
    assert not any(parameter.requires_grad for parameter in alone.model.parameters())
    by_adapter, by_copy = (
        learner(moved(load_model(base, RANK)), beta=0.1, reference=beside) for beside in (None, alone)
    )
    by_adapter.reference = by_adapter.policy
    stats = [half.step([group()], learning_rate=1e-3) for half in (by_adapter, by_copy)]
    assert stats[0].kl == stats[1].kl > 0
    assert same(adapter_of(by_adapter.policy), adapter_of(by_copy.policy))


def test_plain_peft_loads_what_is_exported_and_computes_the_same(base, tmp_path):
    loaded = moved(load_model(base, RANK))
    export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=False)
    whole = AutoModelForCausalLM.from_pretrained(base.model)
    theirs = peft.PeftModel.from_pretrained(whole, tmp_path / "final").eval()
    assert torch.equal(logits(theirs), logits(loaded.model))
    described = peft.PeftConfig.from_pretrained(str(tmp_path / "final"))
    assert (described.base_model_name_or_path, described.inference_mode) == (base.model, True)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_transformers_loads_a_merged_export_and_training_goes_on_untouched(tmp_path, kind):
    loaded = moved(load_model(write_model(tmp_path / "base", kind), RANK))
    frozen, adapter, before = frozen_of(loaded), adapter_of(loaded), logits(loaded.model)
    export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert logits(theirs) == pytest.approx(before, abs=1e-4)
    assert not (tmp_path / "final" / "adapter_config.json").exists()
    assert same(frozen, frozen_of(loaded))
    assert same(adapter, adapter_of(loaded))


def test_the_name_of_an_exported_adapter_stands_for_the_model_with_it(base, tmp_path):
    loaded = moved(load_model(base, RANK))
    export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=False)
    config = ModelConfig(model=str(tmp_path / "final"))
    again = load_model(config)
    assert torch.equal(logits(again.model), logits(loaded.model))
    assert same(adapter_of(again), adapter_of(loaded))
    assert context_length(config) == 512
    assert load_tokenizer(config).eos_token_id == 258
    (tmp_path / "final" / "tokenizer_config.json").unlink()
    assert load_tokenizer(config).eos_token_id == 258
    assert same(adapter_of(load_model(config, RANK)), adapter_of(loaded))
    with pytest.raises(ModelError, match=r"--lora-rank must be 4, as in --model .*final, got 8; or leave it out"):
        load_model(config, LoraConfig(lora_rank=8))
    with pytest.raises(ModelError, match=r"--lora-alpha must be 8, as in --model .*, got 3\.0"):
        load_model(config, LoraConfig(lora_rank=4, lora_alpha=3.0))


def test_pickled_adapters_and_adapters_of_another_model_are_refused(base, tmp_path):
    export_model(load_model(base, RANK), tiny_tokenizer(), tmp_path / "final", merge=False)
    config = ModelConfig(model=str(tmp_path / "final"))
    wider = tiny_model("qwen3")
    wider.config.intermediate_size = 96
    save_model(type(wider)(wider.config), tiny_tokenizer(), tmp_path / "base", torch.float32)
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors cannot be loaded into its base model: size mis"):
        load_model(config)
    weights = tmp_path / "final" / "adapter_model.safetensors"
    weights.rename(weights.with_name("adapter_model.bin"))
    with pytest.raises(ModelError, match=r"has no adapter_model\.safetensors; convert its weights, pickle is not"):
        load_model(config)


def test_an_adapter_whose_base_model_is_gone_names_it(base, tmp_path):
    export_model(load_model(base, RANK), tiny_tokenizer(), tmp_path / "final", merge=False)
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"final: its base model .*base is not a directory"):
        load_tokenizer(ModelConfig(model=str(tmp_path / "final")))


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_samples_the_model_with_its_adapter(tmp_path, kind):
    loaded = moved(load_model(write_model(tmp_path / "base", kind), RANK))
    engine, sampling = local_engine(loaded), Sampling(max_completion_length=20, temperature=0.8)
    assert engine.path == "fused", engine.path_reason
    frozen = frozen_of(loaded)
    groups = engine.generate(requests(), sampling)
    assert same(frozen, frozen_of(loaded))
    for asked, completions in zip(requests(), groups, strict=True):
        for completion in completions:
            ids = torch.tensor([asked.prompt_ids + completion.token_ids])
            with torch.no_grad():
                full = loaded.model(ids).logits[0, len(asked.prompt_ids) - 1 : -1] / 0.8
            expected = full.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=True)
    merged = local_engine(load_model(ModelConfig(model=str(tmp_path / "final"))))
    assert [[c.token_ids for c in one] for one in merged.generate(requests(), sampling)] == [
        [c.token_ids for c in one] for one in groups
    ]


def test_an_update_of_the_adapter_is_seen_by_the_next_call(base):
    loaded = load_model(base, RANK)
    engine, sampling = local_engine(loaded), Sampling(max_completion_length=12)
    before = engine.generate(requests(), sampling)
    moved(loaded)
    assert engine.generate(requests(), sampling) != before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "path", "reason"),
    [
        (peft.LoraConfig(target_modules="all-linear", use_rslora=True), "fused", "agree"),
        (peft.LoraConfig(target_modules="all-linear", use_dora=True), "plain", "more than the product of two"),
        (peft.LoraConfig(target_modules=["q_proj", "embed_tokens"]), "plain", r"embed_tokens .* cannot read \(Embed"),
        (peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]), "plain", "k_proj is a Linear of peft"),
    ],
    ids=["rslora", "dora", "embedding", "ia3"],
)
def test_other_adapters_of_peft_train_too_and_say_what_the_engine_makes_of_them(base, kind, path, reason):
    loaded = moved(adopt_model(load_model(base).model, base, kind))
    engine = local_engine(loaded)
    assert engine.path == path
    assert re.search(reason, engine.path_reason)
    frozen = frozen_of(loaded)
    learner(loaded).step([group()], learning_rate=1e-3)
    assert same(frozen, frozen_of(loaded))


def test_dropout_of_a_given_adapter_is_off(base):
    config = peft.LoraConfig(target_modules="all-linear", lora_dropout=0.5)
    loaded = moved(load_model(base, config))
    assert torch.equal(logits(loaded.model), logits(loaded.model))
    assert config.task_type is None  # the caller's own object is left as it was


def test_a_users_peft_model_goes_on_training_its_adapter_unless_it_is_frozen(base, tmp_path):
    first = moved(load_model(base, RANK))
    export_model(first, tiny_tokenizer(), tmp_path / "final", merge=False)
    half = AutoModelForCausalLM.from_pretrained(base.model, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="is_trainable=True"):
        adopt_model(peft.PeftModel.from_pretrained(half, tmp_path / "final"), base)
    half = AutoModelForCausalLM.from_pretrained(base.model, dtype=torch.bfloat16)
    theirs = peft.PeftModel.from_pretrained(half, tmp_path / "final", is_trainable=True)
    loaded = adopt_model(theirs, base)
    assert loaded.adapter is theirs
    assert adapter_of(loaded).keys() == adapter_of(first).keys()
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    with pytest.raises(ModelError, match="is a PeftModel and has an adapter; leave out the second one"):
        adopt_model(theirs, base, peft.LoraConfig())
    theirs.merge_adapter()
    with pytest.raises(ModelError, match="merged into the weights; call its unmerge_adapter"):
        adopt_model(theirs, base)


def test_a_users_model_object_is_made_ready_in_place(base):
    theirs = tiny_model("qwen2", dtype=torch.bfloat16)
    loaded = adopt_model(theirs, base)
    assert loaded.model is theirs
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.float32}
    copied = frozen_copy(loaded)
    assert copied.model is not theirs
    assert torch.equal(logits(copied.model), logits(theirs))
    with pytest.raises(ModelError, match="must be a PreTrainedModel or a PeftModel around one, got Linear"):
        adopt_model(torch.nn.Linear(2, 2), base)


@pytest.mark.parametrize("lora", [None, RANK], ids=["whole", "adapter"])
def test_a_run_that_is_resumed_from_its_checkpoint_makes_the_same_next_step(base, tmp_path, lora):
    first = learner(load_model(base, lora))
    first.step([group()], learning_rate=1e-3)
    saved = save_checkpoint(
        tmp_path / "checkpoints",
        TrainingState(step=1, position=1, policy_version=1),
        loaded=first.policy,
        tokenizer=TokenizerFiles(tiny_tokenizer()),
        optimizer=first.optimizer,
        keep=1,
    )
    weights = "model.safetensors" if lora is None else "adapter_model.safetensors"
    assert [path.name for path in saved.model.glob("*.safetensors")] == [weights]
    first.step([group()], learning_rate=1e-3)
    adopted = adopt_model(tiny_model("qwen3"), base, lora)
    restore_weights(adopted, saved.model)
    for policy in (load_model(base, lora, checkpoint=saved.model), adopted):
        again = learner(policy)
        load_optimizer(saved, again.optimizer, again.policy.model)
        again.step([group()], learning_rate=1e-3)
        assert same(adapter_of(again.policy), adapter_of(first.policy))
        assert same(frozen_of(again.policy), frozen_of(first.policy))


def test_a_checkpoint_without_an_adapter_does_not_start_one(base, tmp_path):
    load_model(base).weights_writer().write(tmp_path / "model")
    with pytest.raises(ModelError, match="holds a whole model and no adapter; go on without one"):
        load_model(base, RANK, checkpoint=tmp_path / "model")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ("q_prj",),
            r"--lora-targets must name layers of the model, got 'q_prj'; did you mean q_proj\? There are",
        ),
        (("q_proj", "attention"), "got 'attention'; there are down_proj, embed_tokens, gate_proj"),
        (("q_proj", "mlp"), "got 'mlp'"),
        (("lm_head",), "got 'lm_head'"),
    ],
)
def test_targets_that_are_no_layers_are_refused_with_the_names_that_are(base, targets, message):
    with pytest.raises(ModelError, match=message):
        load_model(base, LoraConfig(lora_rank=4, lora_targets=targets))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "got the kind PROMPT_TUNING; give a"),
        (peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "got the kind PREFIX_TUNING"),
        (
            peft.AdaLoraConfig(total_step=10, target_modules=["q_proj"]),
            "got the kind ADALORA, which moves them",
        ),
        (peft.LoraConfig(target_modules=r".*(q_proj|lm_head)"), "an adapter on the output embedding is not supported"),
        (peft.LoraConfig(target_modules="all-linear", modules_to_save=["lm_head"]), "on the output embedding"),
        (peft.LoraConfig(target_modules="all-linear", init_lora_weights="pissa"), "got 'pissa'; it would change the"),
        (peft.LoraConfig(target_modules=["q_proj"], layer_replication=[(0, 2)]), "layer_replication must be left out"),
        (peft.LoraConfig(target_modules=".*nothing"), "the adapter cannot be put into the model: Target modules"),
        (
            peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], alora_invocation_tokens=[1]),
            "alora",
        ),
    ],
)
def test_adapters_that_the_engine_or_the_learner_would_miss_are_refused(base, config, message):
    with pytest.raises(ModelError, match=message):
        load_model(base, config)


def test_tied_embeddings_take_no_adapter(tmp_path):
    model = tiny_model("qwen2")
    model.config.tie_word_embeddings = True
    tied = type(model)(model.config)
    base = ModelConfig(model=str(tmp_path))
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(ModelError, match="the input embedding is also the output embedding"),
    ):
        adopt_model(copy.deepcopy(tied), base, LoraConfig(lora_rank=2, lora_targets=("embed_tokens",)))
    loaded = moved(adopt_model(tied, base, RANK))
    assert local_engine(loaded).path == "fused"
    export_model(loaded, tiny_tokenizer(), tmp_path, merge=True)
    assert logits(load_model(base).model) == pytest.approx(logits(loaded.model), abs=1e-4)


@pytest.mark.filterwarnings("ignore:`lora_bias=True`", "ignore:Adapter .default.")
def test_an_adapter_that_cannot_be_merged_says_so_and_is_written_apart(base, tmp_path):
    loaded = load_model(base, peft.LoraConfig(target_modules="all-linear", lora_bias=True))
    with pytest.raises(
        ModelError, match=r"an adapter of the kind LORA cannot be merged \(.*\); write it without merging"
    ):
        export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=True)
    export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=False)
    assert torch.equal(logits(load_model(ModelConfig(model=str(tmp_path / "final"))).model), logits(loaded.model))


def test_trained_biases_are_no_reference(base):
    loaded = load_model(base, peft.LoraConfig(target_modules="all-linear", bias="all"))
    with pytest.raises(ModelError, match="bias must be 'none' with --beta above 0, got 'all'"):
        load_reference(loaded, base)


def test_without_peft_the_remedy_is_named_before_weights_are_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"an adapter needs the library peft; `pip install 'peft>=0.18'`"):
        load_model(ModelConfig(model="no/such-model"), RANK)


def test_a_saved_adapter_is_the_same_file_each_time(base, tmp_path):
    for name in ("one", "two"):
        load_model(base, RANK).weights_writer().write(tmp_path / name)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert set(load_file(tmp_path / "one" / "adapter_model.safetensors")) == {
        f"base_model.model.model.layers.{layer}.{path}.lora_{side}.weight"
        for layer in (0, 1)
        for path in (
            *(f"self_attn.{part}_proj" for part in "qkvo"),
            *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
        )
        for side in "AB"
    }


@pytest.fixture
def four_bits(tmp_path) -> ModelConfig:
    """The base model's linear layers in 4 bits of bitsandbytes, on disk."""
    pytest.importorskip("bitsandbytes")
    full = write_model(tmp_path / "full", "llama")
    wanted = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    AutoModelForCausalLM.from_pretrained(full.model, quantization_config=wanted).save_pretrained(tmp_path / "four")
    tiny_tokenizer().save_pretrained(tmp_path / "four")
    return ModelConfig(model=str(tmp_path / "four"), device="cpu")


def in_full(config: ModelConfig, place) -> ModelConfig:
    """The same model with the numbers that its 4 bits stand for."""
    dequantised = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32).dequantize()
    plain = tiny_model("llama")
    plain.load_state_dict(dequantised.state_dict())
    save_model(plain, tiny_tokenizer(), place, torch.float32)
    return ModelConfig(model=str(place))


def test_a_step_over_4_bits_is_the_step_over_what_they_stand_for(four_bits, tmp_path):
    adapters = []
    for config in (four_bits, in_full(four_bits, tmp_path / "plain")):
        loaded = load_model(config, RANK)
        half, frozen = learner(loaded), frozen_of(loaded)
        half.step([group()], learning_rate=1e-3)
        half.step([group()], learning_rate=1e-3)  # the first one moves nothing but the matrices that begin as 0
        assert half.runner.forward.kind == "packed"
        assert same(frozen, frozen_of(loaded))
        adapters.append(adapter_of(loaded))
    assert adapters[0].keys() == adapters[1].keys()
    for name, trained in adapters[0].items():
        torch.testing.assert_close(trained, adapters[1][name], atol=1e-5, rtol=1e-4)


def test_an_adapter_over_4_bits_is_sampled_as_it_is_trained_and_exported_alone(four_bits, tmp_path):
    loaded = moved(load_model(four_bits, RANK))
    for asked, (first, *_) in zip(
        requests(), local_engine(loaded).generate(requests(), Sampling(max_completion_length=8)), strict=True
    ):
        ids = torch.tensor([asked.prompt_ids + first.token_ids])
        with torch.no_grad():
            own = loaded.model(ids).logits[0, len(asked.prompt_ids) - 1 : -1].log_softmax(-1)
        assert first.logprobs == pytest.approx(
            own.gather(1, ids[:, len(asked.prompt_ids) :].T)[:, 0].tolist(), abs=1e-4
        )
    with pytest.raises(ModelError, match="cannot be merged into quantised weights, which would round it"):
        export_model(loaded, tiny_tokenizer(), tmp_path / "merged", merge=True)
    export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=False)
    again = load_model(ModelConfig(model=str(tmp_path / "final"), device="cpu"))
    assert torch.equal(logits(again.model), logits(loaded.model))


def test_a_quantised_object_keeps_its_4_bits_and_has_all_else_in_float32(four_bits):
    model = AutoModelForCausalLM.from_pretrained(four_bits.model, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match=r"the model has quantised weights \(bitsandbytes, 4 bits\), which cannot be"):
        adopt_model(model, four_bits)
    loaded = adopt_model(model, four_bits, RANK)
    kinds = {parameter.dtype for parameter in loaded.model.parameters()}
    assert (kinds, set(adapter_of(loaded))) == (
        {torch.uint8, torch.float32},
        set(adapter_of(load_model(four_bits, RANK))),
    )


@pytest.mark.long
def test_a_run_over_4_bits_saves_goes_on_and_ends_with_an_adapter(four_bits, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 4)
    run = str(tmp_path / "run")
    options = (
        f"--model {four_bits.model} --dataset {tmp_path}/rows.jsonl --lora-rank 4 --beta 0.1 --reward-funcs random"
    )
    options += f" --max-completion-length 8 --device cpu --save-steps 1 --max-steps 1 --output-dir {run}"
    assert main(["train", *options.split()]) == 0
    assert main(["train", "--resume", run, "--max-steps", "2"]) == 0
    assert {"adapter_config.json", "adapter_model.safetensors"} < {
        file.name for file in (tmp_path / "run/final").iterdir()
    }


@pytest.mark.long
def test_a_run_that_begins_with_an_adapter_says_what_beta_compares_it_with(base, tmp_path, capsys):
    load_model(base, RANK).weights_writer().write(tmp_path / "adapter")
    tiny_tokenizer().save_pretrained(tmp_path / "adapter")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    options = f"--model {tmp_path}/adapter --dataset {tmp_path}/rows.jsonl --beta 0.1 --reward-funcs random"
    options += f" --max-completion-length 8 --device cpu --max-steps 1 --output-dir {tmp_path}/run"
    assert main(["train", *options.split()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the reference of --beta is its base model" in said
