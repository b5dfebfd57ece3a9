"""Preferences with a known ranking: how near does a loss come to the policy that the preferences
imply?
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from benchmarks.ladder.results import ROOT
from benchmarks.ladder.rung import Arm, Claim, Rung
from benchmarks.ladder.tasks.preferences import Preferences, Worth, distance
from lockstep.config.loading import load_run
from lockstep.models.tokenizer import load_tokenizer

BETA = 1.0
"""The β of the policy that all arms are measured against: the best one for the worth less β·KL to
the reference.
"""


def nearness(folder: Path) -> float:
    """−KL(π ‖ π*), the mean over prompts, from the probabilities of all answers."""
    loaded = load_run(folder)
    task = loaded.dump_options()["data"]["task"]
    first = loaded.warm_start
    assert first is not None
    spec = Preferences.model_validate(task)
    worth = Worth(spec.prompts, spec.letters, spec.length, spec.spread, spec.seed)
    policy = _probabilities(folder / "final", worth)
    reference = _probabilities(ROOT / first.run_folder / "final", worth)
    gaps = [distance(policy[one], reference[one], worth.of[one], BETA) for one in worth.questions]
    return -sum(gaps) / len(gaps)


def _probabilities(folder: Path, worth: Worth) -> dict[str, dict[str, float]]:
    """π(y | x) of each answer to each prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    return {
        question: _answers(model, tokenizer, question, worth.answers)
        for question in worth.questions
    }


@torch.no_grad()
def _answers(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, question: str, answers: list[str]
) -> dict[str, float]:
    start = tokenizer(f"{question}\n")["input_ids"]
    ends = torch.tensor(
        [[*tokenizer(answer)["input_ids"], tokenizer.eos_token_id] for answer in answers]
    )
    tokens = torch.cat([torch.tensor(start).expand(len(answers), -1), ends], dim=1)
    logprobs = model(tokens[:, :-1]).logits.double().log_softmax(-1)[:, len(start) - 1 :]
    found = logprobs.gather(-1, ends[..., None])[..., 0].sum(1).exp()
    return dict(zip(answers, found.tolist(), strict=True))


def _arm(loss: str, *options: str) -> Arm:
    return Arm("preferences.yaml", (f"dpo.preference_loss={loss}", *options))


CERTAIN = "data.task.labels=certain"
SCORES = ("data.chosen_score=chosen_score", "data.rejected_score=rejected_score")
"""Exact where labels are certain, else with the noise by which labels are drawn."""

RUNG = Rung(
    name="preferences",
    question=(
        "Pairs of answers whose worth is known, with labels by Bradley and Terry's model, or "
        "certain."
    ),
    metric="validation/acc",
    measure=nearness,
    optimum=0.0,
    seeds=3,
    arms={
        "dpo": _arm("dpo"),
        "dpo, no SFT": _arm("dpo", "dpo.sft_loss_weight=0"),
        # IPO's optimum has another scale: its β is the better one of .25 and .5, on seed 100.
        "ipo": _arm("ipo", "dpo.ref_policy_kl_penalty=0.25"),
        "rpo_sq": _arm("rpo_sq", *SCORES),
        "dpo, certain": _arm("dpo", CERTAIN),
        "scale, certain": _arm("scale", CERTAIN, *SCORES),
        "rpo_sq, certain": _arm("rpo_sq", CERTAIN, *SCORES),
        "rpo_bwd_kl, certain": _arm("rpo_bwd_kl", CERTAIN, *SCORES),
        "rpo_fwd_kl, certain": _arm("rpo_fwd_kl", CERTAIN, *SCORES),
    },
    claims=(
        Claim(
            "dpo", "dpo, no SFT", "because pairs alone let probability flow to what is no answer"
        ),
        Claim(
            "rpo_sq", "dpo", "because scores tell by how much an answer is better, noise and all"
        ),
        Claim(
            "rpo_sq, certain",
            "dpo, certain",
            "because scores tell by how much an answer is better, exactly",
        ),
        Claim(
            "rpo_sq, certain",
            "rpo_fwd_kl, certain",
            "because a square still pulls where one answer surely wins",
        ),
        Claim("rpo_sq, certain", "rpo_bwd_kl, certain", "for the same reason"),
    ),
)
