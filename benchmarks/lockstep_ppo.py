"""Our side of `benchmarks.ppo_step`: the step that `lockstep train` runs, on the small Llama.

Prints one JSON line.

The reward is the rank of a response's last token, which costs nothing, as on the other side. What a
step does that the other side's does not: it scores the responses again with the learner, reports
how well sampler and learner agree, and attests the refit.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.harness import WARMUP, parser_of, peak_rss_mb
from benchmarks.small_llama import VOCAB, causal_lm, llama_config, random_prompts
from lockstep.algorithms.grpo.options import PolicyGradient
from lockstep.algorithms.policy_gradient.step import build_settings, sample_step
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.ppo.step import PPOWorkers, train_actor_and_critic
from lockstep.config import DataSection
from lockstep.core.types import PhaseTimer, Prompt, skip_timing
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.prompts import PromptRows
from lockstep.learners.torch.learner import TorchLearner
from lockstep.models import attention
from lockstep.models.exact.model import make_exact
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.monitor.agreement import Agreement, AgreementPromise
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.system.process_defaults import keep_freed_memory


def recipe(args: argparse.Namespace) -> PPORecipe:
    """TRL's defaults where it has them: λ = 0.95, clips of 0.2, k1 with 0.05 in the reward, AdamW
    with 3e-6.
    """
    return PPORecipe.model_validate(
        {
            "algorithm": "ppo",
            "model": {"path": "made by the benchmark"},
            "data": {"train": "made by the benchmark", "max_prompt_tokens": args.prompt_tokens},
            "reward": {"type": "python", "function": "benchmarks.lockstep_ppo:last_token"},
            "learner": {"device": "cpu", "dtype": args.dtype},
            "sampling": {"max_tokens": args.new_tokens},
            "validation_sampling": {"max_tokens": args.new_tokens},
            "run": {"num_logged_samples": 0},
            "policy": {"lr": 3e-6},
            "critic": {"lr": 3e-6},
            "ppo": {
                "num_prompts_per_step": args.prompts,
                "global_batch_size": args.prompts // args.minibatches,
                "ppo_epochs": args.epochs,
                "kl": {"coef": 0.05, "placement": "reward"},
            },
        }
    )


def last_token(
    prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
) -> list[float | None]:
    """The number of the last token over the size of the vocabulary."""
    return [int(response.rsplit("t", 1)[1]) / VOCAB for response in responses]


def prompts_in(
    folder: Path, args: argparse.Namespace, data: DataSection
) -> tuple[PromptRows, PreTrainedTokenizerFast]:
    """Prompts of random tokens, read from JSONL like any others, and the tokenizer of their
    words.
    """
    inner = Tokenizer(models.WordLevel({f"t{i}": i for i in range(args.vocab)}, unk_token="t0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    rows = random_prompts([args.prompt_tokens] * args.prompts * 4, vocab=args.vocab)
    texts = (" ".join(f"t{token}" for token in row) for row in rows)
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"question": text, "answer": ""}) + "\n" for text in texts))
    return PromptRows(JsonlIndex(file, "error"), tokenizer, data), tokenizer


def step_of(
    folder: Path, args: argparse.Namespace, phase: PhaseTimer = skip_timing
) -> tuple[Callable[[int], object], list[TorchLearner]]:
    """The step as a function of its number, and the learners that hold the state."""
    options = recipe(args)
    lm = causal_lm(llama_config(hidden=args.hidden, layers=args.layers, vocab=args.vocab)).eval()
    lm.set_attn_implementation(attention.NAME)
    policy = TorchLearner(LogitsHead(lm), options.learner, options.policy)
    critic = TorchLearner(
        ValueHead(copy.deepcopy(lm.model), seed=0), options.learner, options.critic
    )
    reference = TorchLearner(LogitsHead(copy.deepcopy(lm)), options.learner)
    if args.exact:
        for learner in (policy, reference):
            assert isinstance(learner.model, LogitsHead)
            make_exact(learner.model.lm)
    collector = experience_of(folder, args, options, policy, phase=phase)
    workers = PPOWorkers(
        policy=policy,
        critic=critic,
        reference=reference,
        collector=collector,
        phase=phase,
        agreement=agreement_of(args, options, policy, collector),
    )
    choices = build_settings(options, stop_token_ids=())
    return (
        lambda step: train_actor_and_critic(
            step, sample_step(step * args.prompts, step, workers, choices), workers, choices
        ).metrics.floats(),
        [policy, critic, reference],
    )


def experience_of(
    folder: Path,
    args: argparse.Namespace,
    options: PPORecipe | PolicyGradient,
    policy: TorchLearner,
    phase: PhaseTimer = skip_timing,
) -> RolloutCollector:
    """The small Llama answers, sharing the learner's weights."""
    prompts, tokenizer = prompts_in(folder, args, options.data)
    assert isinstance(policy.model, LogitsHead)
    sampler = TorchSampler(policy.model.lm, options.sampler.max_batch_size, options.learner.dtype)
    session = SamplerSession(sampler, policy, phase=phase)
    return RolloutCollector(
        session, prompts, last_token, partial(_decoded, tokenizer), options.seed
    )


def agreement_of(
    args: argparse.Namespace,
    options: PPORecipe | PolicyGradient,
    policy: TorchLearner,
    collector: RolloutCollector,
) -> Agreement:
    """The comparison of learner and sampler, as runs make it."""
    section = options.agreement
    bound = section.choose_bound(options.learner.dtype)
    promise = AgreementPromise(bound, section.stops_run, "lockstep doctor quick", exact=args.exact)
    return Agreement(policy, collector.engine, promise, None, print)


def _decoded(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens)))


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = parser_of(doc)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=1, help="updates per epoch")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="by kernels that give a token the same bits in any batch",
    )
    return parser


Step = Callable[[Path, argparse.Namespace], tuple[Callable[[int], object], list[TorchLearner]]]
"""Makes a step in a folder: a function of its number, and the learners that hold the state."""


def measured(args: argparse.Namespace, step_of: Step) -> dict[str, Any]:
    """Runs the steps, the CPU clock being read between them, and says what they took."""
    with tempfile.TemporaryDirectory() as folder:
        step, _ = step_of(Path(folder), args)
        ticks: list[float] = []
        for number in range(WARMUP + args.steps):
            step(number)
            ticks.append(time.process_time())
    steps = [b - a for a, b in pairwise(ticks)][WARMUP - 1 :]
    return {
        "program": f"lockstep, torch {torch.__version__}",
        "cpu_s": statistics.median(steps),
        "peak_rss_mb": round(peak_rss_mb(), 1),
    }


def main() -> None:
    keep_freed_memory()
    print(json.dumps(measured(arguments(__doc__).parse_args(), step_of)), flush=True)


if __name__ == "__main__":
    main()
