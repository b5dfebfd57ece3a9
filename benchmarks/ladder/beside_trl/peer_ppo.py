"""TRL 1.12's PPO trainer on the ladder's sums; a program of `benchmarks.ladder.beside_trl`.

Three things are done around the trainer, so that both sides learn from the same: the optimizer has a learning rate for
the critic, the critic's unit begins with Lockstep's weights and its bias, and rows come in the order of the file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast
from trl.experimental.ppo import PPOConfig, PPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.ladder.beside_trl.peer import (
    Saver,
    Settings,
    arguments,
    load_policy,
    load_tokenizer,
    program,
    read_rows,
    read_settings,
)


class SumReward(nn.Module):
    """Stands where the trainer expects a reward model: 1 for the right sum, word for word.

    The trainer runs the module named by `base_model_prefix`, then `score` on the last hidden state, and reads what is
    there at the last token.
    """

    base_model_prefix = "backbone"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, answers: Mapping[str, str]) -> None:
        super().__init__()
        self.backbone = _Checker(tokenizer, answers)
        self.score = nn.Identity()


class _Checker(nn.Module):
    def __init__(self, tokenizer: PreTrainedTokenizerFast, answers: Mapping[str, str]) -> None:
        super().__init__()
        self._tokenizer, self._answers = tokenizer, answers

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        texts = self._tokenizer.batch_decode(input_ids, skip_special_tokens=True)
        right_B = torch.tensor([self._score(text) for text in texts])
        return SimpleNamespace(hidden_states=(right_B[:, None, None].expand(*input_ids.shape, 1),))

    def _score(self, text: str) -> float:
        asked, ending, response = text.partition(" make")
        return float(response.split() == self._answers[asked + ending].split())


def load_critic(settings: Settings) -> PreTrainedModel:
    """Loads the first critic: the policy's backbone, and a unit with a bias."""
    critic = AutoModelForSequenceClassification.from_pretrained(settings["model"], num_labels=1, dtype=torch.float32)
    unit = load_file(settings["unit"])
    critic.score = nn.Linear(unit["weight"].shape[1], 1)
    critic.score.load_state_dict(unit)
    return critic


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    settings = read_settings(folder)
    policy, critic, tokenizer = load_policy(settings), load_critic(settings), load_tokenizer(settings)
    saver = Saver(policy, folder, settings["every"])
    common = arguments(settings, folder) | {"total_episodes": settings["steps"] * settings["batch"]}
    adamw: dict[str, Any] = {"betas": settings["betas"], "eps": settings["eps"]}
    groups = [
        {"params": policy.parameters(), "lr": settings["lr"]},
        {"params": critic.parameters(), "lr": settings["critic_lr"]},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=settings["weight_decay"], **adamw)
    rows = read_rows(settings, "prompt", "answer")
    prompts = Dataset.from_dict({"input_ids": tokenizer(list(rows["prompt"]))["input_ids"]})
    trainer = PPOTrainer(
        args=PPOConfig(**common),
        processing_class=tokenizer,
        model=policy,
        ref_model=load_policy(settings),
        reward_model=SumReward(tokenizer, dict(zip(rows["prompt"], rows["answer"], strict=True))),
        value_model=critic,
        train_dataset=prompts,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        callbacks=[saver],
    )
    in_order: Any = prompts
    trainer.dataloader = DataLoader(in_order, settings["batch"], collate_fn=trainer.data_collator)
    trainer.train()
    saver.clock.write(folder, program())


if __name__ == "__main__":
    main()
