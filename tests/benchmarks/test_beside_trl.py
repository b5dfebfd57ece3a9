"""Learning beside TRL: its cases say the same to both sides, its judge is exact, its curves are read between points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import SHAPE
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.ladder.beside_trl import sides
from benchmarks.ladder.beside_trl.cases import CASES, LONGEST, Case
from benchmarks.ladder.beside_trl.measures import answer_probabilities
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.models.tokenizer import words_tokenizer

SAME_WORDS = {"num_generations": "num_generations", "epsilon": "clip", "cliprange": "clip", "lam": "gae_lambda"}
SAME_WORDS |= {"num_ppo_epochs": "ppo_epochs", "gamma": "gamma", "scale_rewards": "scale_rewards"}
"""TRL's words for options of policy gradients, and Lockstep's."""


def test_the_judge_multiplies_the_probabilities_of_the_answer_and_its_end(tmp_path: Path) -> None:
    tokenizer = words_tokenizer(["add two and one", " three", " two one"])
    config = AutoConfig.for_model("qwen2", **(SHAPE | {"vocab_size": len(tokenizer)}))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    asked = [("add two and one", " three"), ("add one", " two one")]
    for (prompt, answer), found in zip(asked, answer_probabilities(tmp_path, tokenizer, asked), strict=True):
        tokens, expected = tokenizer(prompt)["input_ids"], 1.0
        for token in [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]:
            with torch.no_grad():
                expected *= float(model(torch.tensor([tokens])).logits[0, -1].double().softmax(-1)[token])
            tokens = [*tokens, token]
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_sides_are_told_the_same(case: Case) -> None:
    loaded, settings = case.load(1), sides.build_settings(case, 1)
    recipe: Any = loaded.training
    optimizer = recipe.policy if isinstance(recipe, PPORecipe | GRPORecipe) else recipe.optimizer
    assert optimizer.schedule.decay == "constant"
    assert optimizer.schedule.warmup_steps == 0
    assert (settings["lr"], settings["betas"], settings["eps"]) == (optimizer.lr, optimizer.betas, optimizer.eps)
    assert (settings["max_grad_norm"], settings["weight_decay"]) == (optimizer.max_grad_norm, optimizer.weight_decay)
    load = recipe.largest_step
    assert (case.batch, load.updates) == (load.rows, 1)
    if isinstance(recipe, PPORecipe | GRPORecipe):
        ours = recipe.options.model_dump()
        shared = SAME_WORDS.keys() & case.trl.keys()
        assert {word: case.trl[word] for word in shared} == {word: ours[SAME_WORDS[word]] for word in shared}
        assert recipe.sampling.max_tokens == LONGEST
        assert recipe.options.num_prompts_per_step == case.rows
