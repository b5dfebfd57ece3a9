"""Differences of layouts of both backends from one process: log-probabilities, values, losses and gradient norms.

    python -m benchmarks.layouts [--save] [--steps 20]

Small models with random weights of every family learn PPO's losses on recorded rollouts. A layout begins with the
weights of one torch process and takes the same steps. Shown are the largest |Δ| of log-probabilities to those that
plain `transformers` gives in float64 before the first step, and of values to those of one torch process; then, over all
steps and to that process, the largest |Δ| of the policy's loss, which is a mean of terms of about 1 that nearly cancel,
and the largest relative |Δ| of the other three.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.harness import environment, save
from benchmarks.plan_measure import model_folder
from lockstep import keyed
from lockstep.batch import Batch
from lockstep.cluster.learner_group import launch
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection, Optimizer, Parallel, Schedule
from lockstep.learners.base import Learner, train
from lockstep.losses.base import Loss
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
from lockstep.models.load import load_causal_lm
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Head, Request, SamplingParams

FAMILIES = {
    "Llama": {"model_type": "llama"},
    "Qwen2": {"model_type": "qwen2"},
    "Qwen2, tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "Qwen3": {"model_type": "qwen3", "head_dim": 16},
}
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}
LAYOUTS = {
    "torch": {},
    "torch dp 2": {"dp": 2},
    "torch tp 2": {"tp": 2},
    "torch cp 2": {"cp": 2},
    "torch dp 2 · tp 2": {"dp": 2, "tp": 2},
    "torch dp 2 · cp 2": {"dp": 2, "cp": 2},
    "torch tp 2 · cp 2": {"tp": 2, "cp": 2},
    "megatron": {},
    "megatron dp 2": {"dp": 2},
    "megatron tp 2": {"tp": 2},
    "megatron cp 2": {"cp": 2},
    "megatron pp 2": {"pp": 2},
    "megatron tp 2 · pp 2": {"tp": 2, "pp": 2},
}
SAMPLING = SamplingParams(max_tokens=24, temperature=1.2)
OPTIMIZER = Optimizer(lr=1e-3, eps=1e-4, max_grad_norm=0.5, schedule=Schedule(warmup_steps=2))
"""A large eps: Adam would blow up gradients that are zero but for rounding, such as those of a bias of the keys."""

LOSSES: dict[Head, Loss] = {
    "logits": ClippedSurrogate(0.2, 0.2, kl_coef=0.05, entropy_coef=0.01),
    "value": ClippedValue(0.2),
}


@dataclass(frozen=True)
class Seen:
    """The outputs of a learner: before the first step, and in each step.

    Attributes:
        first: Log-probabilities, or values, of the first batch [N].
        losses: One per step.
        norms: Of gradients, one per step.
    """

    first: Tensor
    losses: Tensor
    norms: Tensor


@dataclass(frozen=True)
class Distance:
    """Largest differences of one layout: see the head of this file."""

    family: str
    layout: str
    logprob: float
    value: float
    policy_loss: float
    policy_norm: float
    critic_loss: float
    critic_norm: float


def rollouts(folder: Path, steps: int) -> list[Batch]:
    """Responses of the initial weights to random prompts, with the columns of a PPO step."""
    sampler, draw = TorchSampler(load_causal_lm(folder), 64), torch.Generator().manual_seed(0)
    return [_recorded(sampler, step, draw) for step in range(steps)]


def _recorded(sampler: TorchSampler, step: int, draw: torch.Generator) -> Batch:
    prompts = [torch.randint(64, (length,), generator=draw).tolist() for length in range(2, 14)]
    requests = [Request(tuple(prompt), keyed.key("layouts", step, n)) for n, prompt in enumerate(prompts)]
    batch = sampler.generate(requests, SAMPLING)
    noise = {name: torch.randn(batch.tokens.numel(), generator=draw) for name in ("advantage", "return", "old_value")}
    drawn = batch["sampler_logprob"]
    return batch.with_columns({**noise, "old_logprob": drawn, "ref_logprob": drawn - 0.1, "weight": drawn * 0 + 1})


def plain_logprobs(folder: Path, batch: Batch) -> Tensor:
    """log π(x_t | x_<t) of masked tokens [N] as plain `transformers` gives them, sequence by sequence, in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
    columns = []
    with torch.no_grad():
        for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
            logits = model(input_ids=tokens[None], use_cache=False).logits[0] / SAMPLING.temperature
            own = logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
            columns.append(torch.cat([own.new_zeros(1), own]) * mask)
    return torch.cat(columns)


def seen(learner: Learner, head: Head, batches: Sequence[Batch]) -> Seen:
    """Outputs of a learner for the same steps."""
    first = learner.logprobs(batches[0]) if head == "logits" else learner.values(batches[0])[0] * batches[0].mask
    steps = [train(learner, batch, LOSSES[head]).floats() for batch in batches]
    losses, norms = (torch.tensor([step[name] for step in steps]).double() for name in ("loss", "grad_norm"))
    return Seen(first.double(), losses, norms)


def distances(folder: Path, family: str, steps: int) -> list[Distance]:
    """Distances of every layout, for one family."""
    batches, found = rollouts(folder, steps), dict[tuple[str, Head], Seen]()
    plain, spec = plain_logprobs(folder, batches[0]), LearnerSpec(str(folder), "logits", LearnerSection(), OPTIMIZER, 0)
    for layout in LAYOUTS:
        for head in LOSSES:
            learner = launch(replace(spec, head=head, section=section(layout)), timeout_s=300.0)
            found[layout, head] = seen(learner, head, batches)
            learner.close()
    policy, critic = found["torch", "logits"], found["torch", "value"]
    return [
        Distance(
            family,
            layout,
            largest(found[layout, "logits"].first - plain),
            largest(found[layout, "value"].first - critic.first),
            largest(found[layout, "logits"].losses - policy.losses),
            largest(found[layout, "logits"].norms / policy.norms - 1),
            largest(found[layout, "value"].losses / critic.losses - 1),
            largest(found[layout, "value"].norms / critic.norms - 1),
        )
        for layout in LAYOUTS
    ]


def section(layout: str) -> LearnerSection:
    backend, parallel = "megatron" if layout.startswith("megatron") else "torch", Parallel(**LAYOUTS[layout])
    return LearnerSection(backend=backend, device="cpu", parallel=parallel, micro_batch_tokens=160)


def largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def shown(rows: Sequence[Distance]) -> str:
    """The rows as a Markdown table."""
    head = "| family | layout | log p | V | policy loss | gradient norm | critic loss | gradient norm |"
    lines = [head, "|---|---|" + "---:|" * 6]
    for row in rows:
        family, layout, *figures = astuple(row)
        lines.append(f"| {family} | {layout} | " + " | ".join(f"{figure:.1e}" for figure in figures) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/layouts.json")
    args = parser.parse_args()
    rows: list[Distance] = []
    with tempfile.TemporaryDirectory() as root:
        for family, fields in FAMILIES.items():
            rows += distances(model_folder(Path(root) / family, SHAPE | fields), family, args.steps)
            print(f"{family} done", flush=True)
    where = environment()
    print(where)
    print(shown(rows))
    if args.save:
        print(save("layouts", where, rows, {"arguments": vars(args)}))


if __name__ == "__main__":
    main()
