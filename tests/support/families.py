"""Families of causal language models of transformers as their own configurations make them, scaled down.

Random weights; biases that are not zero; windows, where a family has them, shorter than the sequences of the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

SMALL = {
    "vocab_size": 260, "pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258,
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "embedding_dim": 32, "word_embed_proj_dim": 32,
    "intermediate_size": 64, "ffn_dim": 64, "dff": 64, "ffn_hidden_size": 64, "moe_intermediate_size": 32,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4, "num_blocks": 4,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rotary_dim": 4,
    "max_position_embeddings": 512, "n_positions": 512, "n_ctx": 512, "max_seq_len": 512,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": 8, "window_size": 8, "initializer_range": 0.2, "init_std": 0.2,
}  # fmt: skip
"""What a configuration is given of this: what it has by these names, and is not None, 0 or False."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model type of transformers, and what its configuration is given beside `SMALL`."""

    model_type: str
    twist: str = ""
    """What is not as the configuration has it by default, for the table."""
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """In the table."""
        return f"{self.model_type}, {self.twist}" if self.twist else self.model_type


def _family(model_type: str, twist: str = "", **settings: object) -> Family:
    return Family(model_type=model_type, twist=twist, settings=settings)


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 32, "initializer_range": 0.1,
}  # fmt: skip
"""Of linear attention, whose chunks and single steps round differently: with larger weights by up to 1e-3 nats."""
MAMBA = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip

FAMILIES = (
    _family("llama"),
    _family("llama", "biases, tied", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    _family("llama", "dynamic NTK", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}),
    _family("llama", "longrope", rope_parameters=LONGROPE),
    _family("mistral"),
    _family("mistral", "no window", sliding_window=None),
    _family("ministral", head_dim=8),
    _family("ministral3"),
    _family("qwen2"),
    _family("qwen2", "window", use_sliding_window=True, max_window_layers=2, sliding_window=8),
    _family("qwen3"),
    _family("qwen2_moe", shared_expert_intermediate_size=32),
    _family("qwen3_moe"),
    _family("qwen3_next", **LINEAR),
    _family("qwen3_5_text", **LINEAR),
    _family("qwen3_5_moe_text", **LINEAR),
    _family("gpt2"),
    _family("gpt_neo", attention_types=[[["global", "local"], 2]]),
    _family("gptj"),
    _family("gpt_neox", "dropout", hidden_dropout=0.1, attention_dropout=0.1),
    _family("gpt_bigcode"),
    _family("gpt_oss"),
    _family("openai-gpt"),
    _family("opt", "layer drop", layerdrop=0.1),
    _family("bloom", "dropout", hidden_dropout=0.1, attention_dropout=0.1),
    _family("mpt"),
    _family("falcon"),
    _family("falcon", "alibi", alibi=True),
    _family("falcon", "dropout", hidden_dropout=0.1),
    _family("codegen"),
    _family("ctrl"),
    _family("xglm"),
    _family("biogpt"),
    _family("phi", "dropout", resid_pdrop=0.1, embd_pdrop=0.1),
    _family("phi3"),
    _family("phi3", "longrope", original_max_position_embeddings=16, rope_parameters=LONGROPE),
    _family("phimoe"),
    _family("gemma"),
    _family("gemma2"),
    _family("gemma3_text", num_hidden_layers=6),
    _family("gemma3n_text", "two layers share keys", num_kv_shared_layers=2, hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=260, laurel_rank=8, intermediate_size=64),
    _family("gemma4_text", hidden_size_per_layer_input=8, vocab_size_per_layer_input=260),
    _family("vaultgemma"),
    _family("olmo"),
    _family("olmo2"),
    _family("olmo3"),
    _family("olmoe"),
    _family("flex_olmo"),
    _family("olmo_hybrid", **LINEAR),
    _family("cohere"),
    _family("cohere2"),
    _family("cohere2_moe", sliding_window_pattern=2),
    _family("granite"),
    _family("granite", "scaled logits", logits_scaling=8.0),
    _family("granite_swa"),
    _family("granitemoe"),
    _family("granitemoehybrid", layer_types=["mamba", "attention"] * 2, shared_intermediate_size=32, **MAMBA),
    _family("starcoder2", "dropout, window", residual_dropout=0.1, embedding_dropout=0.1, sliding_window=8),
    _family("stablelm"),
    _family("persimmon", "dropout", hidden_dropout=0.1),
    _family("nemotron", num_key_value_heads=2),
    _family("nemotron_h", layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], ssm_state_size=8,
            mamba_num_heads=8, mamba_head_dim=8, n_groups=1, chunk_size=8, moe_shared_expert_intermediate_size=32,
            initializer_range=0.1),
    _family("smollm3"),
    _family("glm"),
    _family("glm4"),
    _family("glm4_moe"),
    _family("glm4_moe_lite", **LATENT),
    _family("deepseek_v2", num_experts_per_tok=2, **LATENT),
    _family("deepseek_v3", n_group=2, topk_group=1, **LATENT),
    _family("mixtral", "router jitter", router_jitter_noise=0.1),
    _family("jetmoe", kv_channels=8),
    _family("dbrx", attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
            ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32}),
    _family("helium"),
    _family("arcee"),
    _family("seed_oss", residual_dropout=0.1),
    _family("ernie4_5"),
    _family("ernie4_5_moe", moe_num_experts=4, moe_k=2),
    _family("exaone4"),
    _family("hunyuan_v1_dense", head_dim=8),
    _family("hyperclovax", "scaled logits", logits_scaling=0.5),
    _family("laguna", layer_types=["sliding_attention", "full_attention"] * 2, num_attention_heads_per_layer=[4] * 4,
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"], shared_expert_intermediate_size=32),
    _family("mellum", layer_types=["sliding_attention", "full_attention"] * 2),
    _family("apertus"),
    _family("afmoe"),
    _family("diffllama"),
    _family("bitnet"),
    _family("dots1", n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2),
    _family("doge", keep_window_size=8),
    _family("minimax_m2"),
    _family("minicpm3", dim_model_base=4, **LATENT),
    _family("mimo_v2_flash"),
    _family("longcat_flash", **LATENT, zero_expert_num=2, moe_topk=2, expert_ffn_hidden_size=32),
    _family("llama4_text", interleave_moe_layer_step=2, intermediate_size_mlp=64, attention_chunk_size=8),
    _family("lfm2", layer_types=["conv", "conv", "full_attention", "conv"]),
    _family("lfm2_moe", layer_types=["conv", "conv", "full_attention", "conv"], num_dense_layers=1),
    _family("mamba", state_size=8, time_step_rank=4),
    _family("mamba2", state_size=8, head_dim=8, num_heads=8, n_groups=1, chunk_size=8),
    _family("falcon_mamba", state_size=8, time_step_rank=4),
    _family("jamba", mamba_d_state=8, mamba_dt_rank=4, attn_layer_offset=1, attn_layer_period=2,
            use_mamba_kernels=False),
    _family("bamba", attn_layer_indices=[1, 3], **MAMBA),
    _family("zamba2", mamba_d_state=8, mamba_ngroups=1, n_mamba_heads=8, mamba_headdim=8, chunk_size=8,
            layers_block_type=["mamba", "hybrid"] * 2, attention_hidden_size=64, attention_head_dim=16,
            initializer_range=0.1),
    _family("recurrent_gemma", lru_width=32, attention_window_size=8,
            block_types=["recurrent", "recurrent", "attention"]),
    _family("falcon_h1", mamba_d_ssm=64, **MAMBA),
    _family("falcon_h1", "scaled logits", mamba_d_ssm=64, lm_head_multiplier=0.5, **MAMBA),
    _family("minimax", layer_types=["linear_attention", "full_attention"] * 2, block_size=8),
    _family("kimi_linear", layer_types=["linear_attention", "full_attention"] * 2,
            linear_attn_config={"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4}, num_experts_per_token=2,
            **LATENT),
    _family("rwkv", attention_hidden_size=32),
    _family("rwkv", "no rescaling", attention_hidden_size=32, rescale_every=0),
    _family("xlstm", chunk_size=8),
    _family("nanochat"),
    _family("modernbert-decoder", local_attention=8),
    _family("bert"),
)  # fmt: skip


def family(name: str) -> Family:
    """The family of this name."""
    return next(one for one in FAMILIES if one.name == name)


def make_config(one: Family) -> PretrainedConfig:
    """The family's configuration, scaled down."""
    own = AutoConfig.for_model(one.model_type)
    has = own.to_dict()
    small = {name: value for name, value in SMALL.items() if has.get(name) or name.endswith("token_id")}
    settings = small | dict(one.settings)
    return AutoConfig.for_model(one.model_type, **settings)


def make_model(one: Family) -> PreTrainedModel:
    """The family's model with weights that are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(make_config(one))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(".bias"):
                    parameter.normal_(0, 0.1)
    return model
