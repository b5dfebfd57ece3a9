"""Cut points of a decoder: names of intermediate values, the same in every engine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

End = Literal["in", "out"]


@dataclass(frozen=True)
class CutPoint:
    """The name of an intermediate value of the model.

    Attributes:
        stage: `embed`, `resid_in`, `attn_norm`, `q`, `k`, `v`, `attn`, `o`, `resid_mid`,
            `mlp_norm`, `router`, `routed`, `experts`, `gate`, `up`, `act`, `down`, `resid_out`,
            `final_norm`, `logits`, `output`; an engine's own name for other values.
        layer: Number of the decoder layer, from 0; None outside layers.
    """

    stage: str
    layer: int | None = None

    def __str__(self) -> str:
        if self.layer is None:
            return self.stage
        return f"layers.{self.layer}.{self.stage}"

    @staticmethod
    def from_name(name: str) -> CutPoint:
        """Returns the cut that prints as `name`."""
        found = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        if found:
            return CutPoint(found[2], int(found[1]))
        return CutPoint(name)


OUTPUT = CutPoint("output")
"""The logits that the model returns, after scaling and soft-capping."""


@dataclass(frozen=True)
class PassCapture:
    """Values of one pass over one sequence.

    Attributes:
        logits: Logits of every position, [T, V].
        seen: Value of each cut, in order of execution, before it was overwritten.
        column: Log-probabilities of the tokens from the second on, as the engine returns them, [T -
            1]; None if it returns none.
        hidden: Cuts that this engine does not have, because a fused kernel skips them.
    """

    logits: Tensor
    seen: Mapping[CutPoint, Tensor]
    column: Tensor | None = None
    hidden: frozenset[CutPoint] = frozenset()

    def is_hidden(self, cut: CutPoint) -> bool:
        """True for a hidden cut, and for the further values (`stage.1`, …) of one."""
        stem, _, index = cut.stage.rpartition(".")
        return cut in self.hidden or (index.isdigit() and CutPoint(stem, cut.layer) in self.hidden)


ROUTED = "routed"
"""Stage of the experts' inputs: states, expert ids, weights."""

TRUNK = (
    "resid_in",
    "attn_norm",
    "attn",
    "o",
    "resid_mid",
    "mlp_norm",
    "act",
    "down",
    ROUTED,
    "experts",
)
"""Stages that every value of a layer passes; parallel branches lie between them."""

_LAYER = re.compile(r"^(?:.*\.)?(?:layers|h|blocks)\.(\d+)\.(.+)$")

_OUTSIDE: tuple[tuple[str, str | None, str | None], ...] = (
    (r"embed_tokens|wte|embed_in|word_embeddings", None, "embed"),
    (r"norm|ln_f|final_layernorm|final_layer_norm", "resid_out", "final_norm"),
    (r"lm_head|embed_out|output_layer", None, "logits"),
)

_INSIDE: tuple[tuple[str, str | None, str | None], ...] = (
    (r"input_layernorm|ln_1", "resid_in", "attn_norm"),
    (r"pre_feedforward_layernorm|ln_2", "resid_mid", "mlp_norm"),
    (r"post_attention_layernorm", "resid_mid", "mlp_norm"),
    (r".*\.q_proj", None, "q"),
    (r".*\.k_proj", None, "k"),
    (r".*\.v_proj", None, "v"),
    (r".*\.(c_attn|qkv_proj|query_key_value|linear_qkv)", None, "qkv"),
    (r".*\.(o_proj|out_proj)|attn\.c_proj|attention\.dense", "attn", "o"),
    (r".*\.(gate|router)", None, "router"),
    (r".*\.experts", ROUTED, "experts"),
    (r".*\.gate_proj", None, "gate"),
    (r".*\.(up_proj|c_fc|fc1|dense_h_to_4h)", None, "up"),
    (r".*\.gate_up_proj", None, "gate_up"),
    (r".*\.(down_proj|fc2|dense_4h_to_h)|mlp\.c_proj", "act", "down"),
)
"""Patterns of module names inside a layer, and the stages at their input and output."""

_NORMED_TWICE = ("post_attention_layernorm", "post_feedforward_layernorm")
"""Norms after a block's output, in models that also have one before the MLP."""


def name_cuts(paths: list[str]) -> dict[tuple[str, End], CutPoint]:
    """Gives each input and output of modules a unique name.

    Args:
        paths: Paths of all watched modules, by the names of `transformers`.
    """
    normed_twice = any(path.endswith("pre_feedforward_layernorm") for path in paths)
    named: dict[tuple[str, End], CutPoint] = {}
    for path in paths:
        layer, inner = _split_path(path)
        table = _INSIDE
        if layer is None:
            table = _OUTSIDE
        if normed_twice and inner in _NORMED_TWICE:
            table = ()
        row = next((row for row in table if re.fullmatch(row[0], inner)), (inner, None, inner))
        if row[1]:
            named[path, "in"] = CutPoint(row[1], layer)
        if row[2]:
            named[path, "out"] = CutPoint(row[2], layer)
    # a name may repeat in a layer, as with attention and Mamba
    for own_name in (lambda path: _split_path(path)[1], lambda path: path):
        count = Counter(named.values())
        for (path, end), cut in named.items():
            if count[cut] > 1:
                suffix = ".in" if end == "in" else ""
                named[path, end] = CutPoint(own_name(path) + suffix, cut.layer)
    return named


def _split_path(path: str) -> tuple[int | None, str]:
    """The layer of a module and its path inside the layer; None and its name if it is outside
    layers.
    """
    found = _LAYER.match(path)
    if found:
        return int(found[1]), found[2]
    return None, path.rpartition(".")[2]
