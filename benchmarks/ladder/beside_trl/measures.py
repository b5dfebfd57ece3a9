"""The common judge of both sides: exact measures of a model in a Hugging Face folder, without sampling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from benchmarks.ladder.tasks.preferences import Preferences, Worth, distance
from lockstep.config.loading import Loaded
from lockstep.models.tokenizer import load_tokenizer


def solve_sums(model: Path, case: Loaded) -> float:
    """The expected reward of responses to held-out sums: the mean probability of the right one, its end included."""
    rows = _held_out(case)
    texts = [(row["question"], row["answer"]) for row in rows]
    return sum(answer_probabilities(model, _tokenizer(case), texts)) / len(rows)


def come_near(model: Path, case: Loaded) -> float:
    """−KL(π ‖ π*), the mean over prompts, as the rung `preferences` has it: π* is the best policy for β = 1."""
    spec = case.training.data.task
    assert isinstance(spec, Preferences)
    worth, first = Worth(spec.prompts, spec.letters, spec.length, spec.spread, spec.seed), case.warm_start
    assert first is not None
    asked = [(f"{question}\n", answer) for question in worth.questions for answer in worth.answers]
    policy, reference = (
        dict(zip(asked, answer_probabilities(folder, _tokenizer(case), asked), strict=True))
        for folder in (model, first.run_folder / "final")
    )

    def of(found: dict[tuple[str, str], float], question: str) -> dict[str, float]:
        return {answer: found[f"{question}\n", answer] for answer in worth.answers}

    gaps = [distance(of(policy, one), of(reference, one), worth.of[one], 1.0) for one in worth.questions]
    return -sum(gaps) / len(gaps)


@torch.no_grad()
def rank_pairs(model: Path, case: Loaded) -> float:
    """Mean log-probability of the held-out rankings by Bradley and Terry's model; log ½ is chance."""
    classifier, tokenizer = AutoModelForSequenceClassification.from_pretrained(model), _tokenizer(case)
    classifier.config.pad_token_id = tokenizer.pad_token_id
    rows = _held_out(case)
    chosen_P, rejected_P = (
        classifier(**_pad([_ids(tokenizer, f"{row['question']}\n", row[which]) for row in rows], tokenizer)).logits[
            :, 0
        ]
        for which in ("chosen", "rejected")
    )
    return float(F.logsigmoid(chosen_P - rejected_P).mean())


@torch.no_grad()
def answer_probabilities(
    model: Path, tokenizer: PreTrainedTokenizerBase, asked: Sequence[tuple[str, str]]
) -> list[float]:
    """π(answer, stop token | prompt) of each pair of texts, at temperature 1."""
    lm = AutoModelForCausalLM.from_pretrained(model)
    rows = [_ids(tokenizer, prompt, answer) for prompt, answer in asked]
    batch = _pad(rows, tokenizer)
    logprob_BTV = lm(**batch).logits[:, :-1].double().log_softmax(-1)
    own_BT = logprob_BTV.gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    start_B = torch.tensor([len(tokenizer(prompt)["input_ids"]) for prompt, _ in asked])
    length_B = torch.tensor([len(row) for row in rows])
    place_T = torch.arange(1, int(length_B.max()))
    answered_BT = (place_T >= start_B[:, None]) & (place_T < length_B[:, None])
    return own_BT.where(answered_BT, 0.0).sum(1).exp().tolist()


def _ids(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> list[int]:
    assert isinstance(tokenizer.eos_token_id, int)
    return [*tokenizer(prompt)["input_ids"], *tokenizer(answer)["input_ids"], tokenizer.eos_token_id]


def _pad(rows: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Rows as a batch, padded behind."""
    length = max(map(len, rows))
    pad = tokenizer.pad_token_id
    assert isinstance(pad, int)
    return {
        "input_ids": torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows]),
    }


def _tokenizer(case: Loaded) -> PreTrainedTokenizerBase:
    assert case.warm_start is not None
    return load_tokenizer(case.warm_start.run_folder / "final")


def _held_out(case: Loaded) -> list[dict[str, Any]]:
    """The rows that the task of a case holds out."""
    assert case.training.data.task is not None
    folder = Path("build/ladder/beside_trl/held_out") / case.digest
    files = case.training.data.task.write(folder)
    return [json.loads(line) for line in files.validation.read_text().splitlines()]
