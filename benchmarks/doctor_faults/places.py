"""Where the faults of each kind lie: the stages at which a segment ends that holds them, or the column."""

from __future__ import annotations

COLUMN = "column"
"""Behind the logits, or only beside other sequences, or only while tokens are drawn."""

_NORMS = frozenset(
    {"attn_norm", "mlp_norm", "final_norm", "post_attention_layernorm", "post_feedforward_layernorm"}
    | {"post_mlp_layernorm", "post_norm1"}
)
_HEADS = frozenset(
    {"q", "k", "v", "qkv", "attn", "o", "self_attn.q_norm", "self_attn.k_norm", "rotary_emb"}
    | {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.dense", "self_attention.attention_dropout"}
)
_BRANCH = frozenset(
    {"gate", "up", "gate_up", "act", "mlp.act_fn", "down", "router", "routed", "experts"}
    | {"mlp.act", "mlps.0.down_proj", "mlps.1.down_proj", "resid_mlp_dropout"}
)
_ENDS = frozenset({"embed", "resid_in", "resid_mid", "resid_out", "logits", "output", "wpe"})
_ALL = _NORMS | _HEADS | _BRANCH | _ENDS
_BEHIND = frozenset({COLUMN})

PLACES: dict[str, frozenset[str]] = {
    "retokenised": _BEHIND,
    "off_by_one": _BEHIND,
    "first_token": _BEHIND,
    "temperature": _BEHIND | {"output", "logits"},
    "top_p": _BEHIND,
    "top_k": _BEHIND,
    "penalty": _BEHIND,
    "softmax_precision": _BEHIND,
    "padded_vocabulary": _BEHIND | {"output", "logits"},
    "softcap": frozenset({"logits", "output", "attn"}),
    "head_precision": _BEHIND | {"logits", "output"},
    "dtype": _ALL | _BEHIND,
    "rope": frozenset({"rotary_emb", "q", "k", "attn"}) | _BEHIND,
    "sliding_window": frozenset({"attn"}) | _BEHIND,
    "bias": _HEADS | _BRANCH | {"logits"},
    "norm_eps": _NORMS | {"self_attn.q_norm", "self_attn.k_norm"},
    "activation": frozenset({"act", "mlp.act", "mlp.act_fn", "down", "experts"}),
    "attention": frozenset({"attn", "o", "self_attn.dense"}),
    "embedding": frozenset({"embed", "resid_in", "wpe"}),
    "stale_tensor": _ALL,
    "swapped_tensors": _ALL,
    "permuted_tensor": _ALL,
    "tied_head": frozenset({"logits", "output", "embed"}),
    "missed_buffer": _ALL,
    "quantised_weights": _ALL,
    "kv_precision": frozenset({"k", "v", "attn"}) | _BEHIND,
    "stale_prefix_cache": _BEHIND,
    "chunked_state": _BEHIND,
    "decode_kernel": _BEHIND,
    "left_padding": _BEHIND,
    "packed_positions": _BEHIND,
    "packed_leak": _BEHIND,
    "batch_variance": _BEHIND,
    "nondeterminism": _BEHIND | _ALL,
    "dropout": _ALL | _BEHIND,
    "kernel": frozenset({"attn"}) | _BEHIND,
    "parallel_reduction": _ALL | _BEHIND,
    "routing": frozenset({"router", "routed", "experts"}),
}
"""By what the faults of the lists are called."""
