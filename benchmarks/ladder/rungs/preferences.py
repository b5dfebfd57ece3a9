"""Preferences with a known ranking: how near does a loss come to the policy that the preferences imply?"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from benchmarks.ladder.rung import Arm, Claim, Rung
from lockstep.config.loading import load_run
from lockstep.models.tokenizer import load_tokenizer
from lockstep.tasks.preferences import Preferences, Worth, distance

ROOT = Path(__file__).resolve().parents[3]
BETA = 1.0
"""β of the policy that all arms are measured against: the best one for the worth less β·KL to the reference."""


def nearness(folder: Path) -> float:
    """−KL(π ‖ π*), the mean over prompts, from the probabilities of all answers."""
    loaded = load_run(folder)
    task, first = loaded.dump()["data"]["task"], loaded.warm_start
    assert first is not None
    spec = Preferences.model_validate(task)
    worth = Worth(spec.prompts, spec.letters, spec.length, spec.spread, spec.seed)
    policy = _probabilities(folder / "final", worth)
    reference = _probabilities(ROOT / first.run_folder / "final", worth)
    gaps = [distance(policy[one], reference[one], worth.of[one], BETA) for one in worth.questions]
    return -sum(gaps) / len(gaps)


def _probabilities(folder: Path, worth: Worth) -> dict[str, dict[str, float]]:
    """π(y | x) of each answer to each prompt."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), load_tokenizer(folder)
    return {question: _answers(model, tokenizer, question, worth.answers) for question in worth.questions}


@torch.no_grad()
def _answers(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, question: str, answers: list[str]
) -> dict[str, float]:
    start = tokenizer(f"{question}\n")["input_ids"]
    ends = torch.tensor([[*tokenizer(answer)["input_ids"], tokenizer.eos_token_id] for answer in answers])
    tokens = torch.cat([torch.tensor(start).expand(len(answers), -1), ends], dim=1)
    logprobs = model(tokens[:, :-1]).logits.double().log_softmax(-1)[:, len(start) - 1 :]
    found = logprobs.gather(-1, ends[..., None])[..., 0].sum(1).exp()
    return dict(zip(answers, found.tolist(), strict=True))


def _arm(loss: str, *options: str) -> Arm:
    scores = ("data.chosen_score=chosen_score", "data.rejected_score=rejected_score")
    reads = scores if loss == "scale" or loss.startswith("rpo") else ()
    return Arm("preferences.yaml", (f"dpo.preference_loss={loss}", *reads, *options))


CERTAIN, WRONG = "data.task.labels=certain", "data.task.wrong=0.25"

RUNG = Rung(
    name="preferences",
    question="Pairs of answers whose worth is known, labelled as Bradley and Terry have it, rightly, or wrongly.",
    metric="validation/acc",
    measure=nearness,
    optimum=0.0,
    arms={
        "dpo": _arm("dpo"),
        "ipo": _arm("ipo"),
        "scale": _arm("scale"),
        "rpo_sq": _arm("rpo_sq"),
        "rpo_bwd_kl": _arm("rpo_bwd_kl"),
        "rpo_fwd_kl": _arm("rpo_fwd_kl"),
        "dpo, certain": _arm("dpo", CERTAIN),
        "ipo, certain": _arm("ipo", CERTAIN),
        "rpo_bwd_kl, certain": _arm("rpo_bwd_kl", CERTAIN),
        "dpo, wrong": _arm("dpo", WRONG),
        "ipo, wrong": _arm("ipo", WRONG),
        "rpo_bwd_kl, wrong": _arm("rpo_bwd_kl", WRONG),
    },
    claims=(Claim("dpo", "ipo", "because labels are drawn as DPO supposes"),),
)
