"""Score of `lockstep_doctor.locate` on faults that were real: what a fix took out of some program is put in again here.

    python -m benchmarks.historic_faults

Each is told in our own words in today's code of `transformers`, whichever program had it. The truth is the line. Of
those behind the logits it is the engine, and that it delivers another column than that of its own logits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.doctor_mutations import table_of
from benchmarks.mutate_code import Edit, patch_of
from benchmarks.mutated_programs import build, in_transformers, read
from benchmarks.mutation_score import Judge, Score
from lockstep_doctor import Capture, CutPoint, ModuleTap, examine
from lockstep_doctor.locate import pick_logprobs

_GITHUB = "https://github.com/"


@dataclass(frozen=True)
class Historic:
    """A fault of the past.

    Attributes:
        link: To the issue or the fix, behind GitHub's address.
        what: It did.
        model: Which shows it.
        module: Of `transformers`, within the package.
        before: The right code.
        after: The wrong code, in as many lines.
    """

    link: str
    what: str
    model: str
    module: str
    before: str
    after: str

    @property
    def edit(self) -> Edit:
        """The fault as an edit."""
        file = str(importlib.import_module(f"transformers.{self.module}").__file__)
        return patch_of(file, self.before, self.after)


def _modelling(model: str) -> str:
    family = model.split(" ", 1)[0]
    return f"models.{family}.modeling_{family}"


def _in_family(link: str, what: str, model: str, before: str, after: str) -> Historic:
    return Historic(link, what, model, _modelling(model), before, after)


HISTORIC = (
    _in_family("vllm-project/vllm/pull/52158", "logits left unscaled", "granite",
               "logits = logits / self.config.logits_scaling", "logits = logits / 1.0"),
    _in_family("huggingface/transformers/pull/38290", "attention scaled twice", "opt",
               "            scaling=1.0,", "            scaling=self.scaling,"),
    _in_family("huggingface/transformers/pull/29285", "angles of positions in bf16", "llama",
               "emb = torch.cat((freqs, freqs), dim=-1)", "emb = torch.cat((freqs, freqs), dim=-1).bfloat16().float()"),
    _in_family("huggingface/transformers/pull/29402", "the norm rounded before its weight", "gemma2",
               "output = self._norm(x.float())", "output = self._norm(x.float()).bfloat16().float()"),
    _in_family("huggingface/transformers/pull/29402", "GELU exact, not by tanh", "gemma2",
               "self.act_fn = ACT2FN[config.hidden_activation]", 'self.act_fn = ACT2FN["gelu"]'),
    _in_family("vllm-project/vllm/pull/3653", "the embedding's factor rounded to bf16", "gemma2",
               "super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)",
               "super().forward(input_ids) * self.embed_scale.bfloat16().to(self.weight.dtype)"),
    Historic("NVIDIA-NeMo/Megatron-Bridge/pull/2656", "windows one token too long", "gemma2", "masking_utils",
             "return kv_idx > q_idx - sliding_window", "return kv_idx >= q_idx - sliding_window"),
    _in_family("huggingface/transformers/pull/35681", "windows lost", "gemma2",
               '"sliding_attention": create_sliding_window_causal_mask(**mask_kwargs)',
               '"sliding_attention": create_causal_mask(**mask_kwargs)'),
    _in_family("vllm-project/vllm/pull/5908", "no soft cap", "gemma2",
               "            logits = torch.tanh(logits)", "            logits = logits * 1.0"),
    _in_family("pytorch/torchtitan/issues/1448", "weights of experts not normalized", "qwen3_moe",
               "        if self.norm_topk_prob:\n            router_top_value /= router",
               "        if not self.norm_topk_prob:\n            router_top_value /= router"),
    _in_family("sgl-project/sglang-jax/pull/1282", "the experts' factor skipped", "deepseek_v3",
               "topk_weights = topk_weights * self.routed_scaling_factor", "topk_weights = topk_weights * 1.0"),
    Historic("unslothai/unsloth/pull/6197", "scaling of positions dropped", "llama 3.1", "modeling_rope_utils",
             "return inv_freq_llama, attention_factor", "return inv_freq, attention_factor"),
    _in_family("NeuraLegion/shainet/pull/111", "neighbours rotated, not halves", "llama",
               "x1 = x[..., : x.shape[-1] // 2]\n    x2 = x[..., x.shape[-1] // 2 :]",
               "x1 = x[..., 0::2]\n    x2 = x[..., 1::2]"),
    _in_family("NVIDIA/Megatron-LM/pull/848", "softmax of wrongly scaled scores", "llama",
               "            scaling=self.scaling,", "            scaling=self.scaling**2,"),
    _in_family("vllm-project/vllm/pull/31464", "a one too many in norms", "gemma2",
               "output * (1.0 + self.weight.float())", "output * (2.0 + self.weight.float())"),
    _in_family("NVIDIA-NeMo/RL/issues/1801", "YaRN's factor of attention left out (our reading)", "qwen3 yarn",
               "cos = emb.cos() * self.attention_scaling", "cos = emb.cos()"),
    _in_family("NVIDIA-NeMo/RL/issues/2100", "states between chunks decay wrongly (our reading)", "mamba2",
               "state_decay_out = torch.exp(A_cumsum)", "state_decay_out = torch.exp(A_cumsum.roll(1, -1))"),
)  # fmt: skip


_TEMPERATURE = 0.7

Deliver = Callable[[Tensor, Tensor], Tensor]
"""Function from raw logits [T, V] and ids [T] to the column that an engine delivers [T - 1]."""


def deliver(raw_TV: Tensor, tokens_T: Tensor) -> Tensor:
    """The column of the distribution that is sampled from."""
    return pick_logprobs(_truncate(raw_TV / _TEMPERATURE), tokens_T)


def _truncate(scaled_TV: Tensor) -> Tensor:
    """Logits of which the least likely quarter cannot be drawn."""
    kept = scaled_TV.shape[-1] * 3 // 4
    return scaled_TV.masked_fill(scaled_TV < scaled_TV.topk(kept).values[:, -1:], -30.0)


BEHIND: dict[tuple[str, str], Deliver] = {
    ("vllm-project/vime/pull/69", "log-probabilities before temperature (issue 64)"): pick_logprobs,
    ("PrimeIntellect-ai/prime-rl/pull/697", "log-probabilities divided by temperature"): (
        lambda raw_TV, tokens_T: pick_logprobs(raw_TV, tokens_T) / _TEMPERATURE
    ),
    ("sgl-project/sglang/pull/2664", "log-probabilities before the unlikely are left out"): (
        lambda raw_TV, tokens_T: pick_logprobs(raw_TV / _TEMPERATURE, tokens_T)
    ),
}
"""Of each fault behind the logits, the column that the engine delivers instead."""


class DeliveringTap(ModuleTap):
    """A model that samples: its logits are those of the distribution that is drawn from."""

    def __init__(self, name: str, delivers: Deliver) -> None:
        super().__init__(build("llama"), name, read=lambda model, ids: _truncate(read(model, ids) / _TEMPERATURE))
        self._delivers = delivers

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> Capture:
        found = super().run(tokens_T, forced)
        with torch.no_grad():
            return replace(found, column=self._delivers(read(self.model, tokens_T), tokens_T))


def examine_delivered(delivers: Deliver) -> tuple[bool, list[str]]:
    """Returns whether the engine alone is said to deliver another column, and nothing else is; and what is said."""
    requests = [torch.randint(0, 97, (24,), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    found = examine(DeliveringTap("right", deliver), DeliveringTap("wrong", delivers), requests)
    said = list(found.columns)
    alone = bool(said) and said[0].startswith("wrong delivers") and not any("right delivers" in line for line in said)
    return alone and not found.location.places, said


def score_history() -> Iterator[Score]:
    """Yields the score of each."""
    for one in HISTORIC:
        program = in_transformers(one.model, [f"transformers.{one.module}"], f"{one.what} ({_GITHUB}{one.link})")
        yield Judge(program).score(one.edit)


def main() -> None:
    scores: list[Score] = []
    for one in score_history():
        print(f"{one.program}: {one.outcome}, {one.gap:.2g} nats, {', '.join(one.found)}", flush=True)
        scores.append(one)
    print(*table_of(scores), sep="\n")
    for (link, what), delivers in BEHIND.items():
        placed, said = examine_delivered(delivers)
        print(f"{what} ({_GITHUB}{link}): {'in its place' if placed else 'not placed'}: {'; '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
