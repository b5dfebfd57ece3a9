"""The other side of `benchmarks.ppo_step`: TRL's PPO trainer, in an environment of its own.

Prints one JSON line.

TRL 1.12.0 is the last release that has a PPO trainer. It needs four models: policy, reference,
value and reward. The settings here are those that cost it least on a CPU: fp32 without autocast, no
gradient checkpointing, the whole batch in one micro-batch, no logging to disk, no progress bar, no
sampled completions, and a reward that costs nothing.

The trainer calls the garbage collector twice a step. That is a fixed cost (it grows with what is
imported, not with the model), and on a model as small as this it is half of the step and more:
`cpu_without_gc_s` is the step without it.
"""

from __future__ import annotations

import argparse
import tempfile
from types import SimpleNamespace

from datasets import Dataset  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from transformers import LlamaForSequenceClassification
from trl.experimental.ppo import PPOConfig, PPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.baselines.trl_parts import CHEAPEST, StepClock, add_sizes, tokenizer
from benchmarks.harness import WARMUP
from benchmarks.small_llama import causal_lm, llama_config, random_prompts


class FreeReward(nn.Module):
    """Stands where the trainer expects a reward model, and costs nothing: the score of a response
    is its last token.

    The trainer runs the module named by `base_model_prefix`, then `score` on the last hidden state.
    """

    base_model_prefix = "backbone"

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.backbone = _TokenAsHidden(vocab)
        self.score = nn.Identity()


class _TokenAsHidden(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self._vocab = vocab

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=((input_ids / self._vocab)[:, :, None],))


def trainer(args: argparse.Namespace, steps: int, folder: str, clock: StepClock) -> PPOTrainer:
    """TRL's trainer on the small Llama; value and reward model are of the same size."""
    config = PPOConfig(
        output_dir=folder,
        per_device_train_batch_size=args.prompts // args.minibatches,
        num_mini_batches=args.minibatches,
        num_ppo_epochs=args.epochs,
        total_episodes=steps * args.prompts,
        response_length=args.new_tokens,
        stop_token=None,
        temperature=1.0,
        kl_coef=0.05,
        num_sample_generations=0,
        **CHEAPEST,
    )
    prompts = random_prompts([args.prompt_tokens] * args.prompts * 4, vocab=args.vocab)
    size = {"hidden": args.hidden, "layers": args.layers, "vocab": args.vocab}
    head = llama_config(**size)
    head.num_labels = 1
    return PPOTrainer(
        args=config,
        processing_class=tokenizer(args.vocab),
        model=causal_lm(llama_config(**size)),
        ref_model=causal_lm(llama_config(**size)),
        reward_model=FreeReward(args.vocab),
        value_model=LlamaForSequenceClassification(head),
        train_dataset=Dataset.from_dict({"input_ids": prompts}),
        callbacks=[clock],
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4, help="TRL's default is 4")
    add_sizes(parser)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer(args, WARMUP + args.steps, folder, clock).train()
    clock.print_result()


if __name__ == "__main__":
    main()
