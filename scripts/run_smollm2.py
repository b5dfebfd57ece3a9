"""Runs the recipes `*_smollm2` on a real model one after another, and writes what they measured.

PYTHONPATH=. python scripts/run_smollm2.py MODEL TREES WORK grpo_1 grpo_2    # all if none is named

A run that has ended is not made again. TREES are ranked conversations of OpenAssistant. The results
are in WORK/results.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from examples.sentence_pairs import OPTIONS

ROOT = Path(__file__).parents[1]
SEEDS = {"grpo": 5, "ppo": 3, "reward": 1, "dpo": 1, "sft": 1, "distill": 1}
NAMES = [f"{recipe}_{seed}" for recipe, seeds in SEEDS.items() for seed in range(1, seeds + 1)]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(work: Path, *command: str) -> float:
    """Runs a Python command in the folder. Returns its CPU seconds."""
    process = subprocess.Popen([sys.executable, *command], cwd=work, env=ENVIRONMENT)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return used.ru_utime + used.ru_stime


def make_inputs(model: Path, trees: Path, work: Path) -> None:
    """Writes rows of OpenAssistant, pairs of the model's own sentences, and the student."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "held_out_sentence_pairs.jsonl").exists():
        run(work, str(ROOT / "examples/sentence_pairs.py"), str(model))
    if not (work / "student/config.json").exists():
        run(work, str(ROOT / "examples/oasst_rows.py"), str(trees))
        run(work, str(ROOT / "examples/half_layers.py"), str(model), "student")


def train(name: str, model: Path, work: Path) -> dict[str, Any]:
    """Trains one run. Returns what it measured."""
    recipe, seed = name.split("_")
    place = "teacher.path" if recipe == "distill" else "model.path"
    begun = time.time()
    options = (f"{place}={model}", f"seed={seed}", f"run.folder={name}")
    used = run(work, "-m", "lockstep", "train", f"{recipe}_smollm2", *options)
    lines = (work / name / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = {"cpu_s": used, "wall_s": time.time() - begun, "rows": rows}
    final = work / name / "final"
    if recipe == "dpo":
        found["sentences"] = grade_sentences(final, work)
    if recipe == "sft":
        found["loss"] = [measure_loss(folder, work) for folder in (model, final)]
    if recipe == "distill":
        students = (work / "student", final)
        found["kl"] = [measure_divergence(folder, model, work) for folder in students]
    return found


def grade_sentences(folder: Path, work: Path) -> dict[str, float]:
    """The share of held-out prompts that greedy responses follow, with its interval."""
    out = folder.parent / "eval"
    greedy = ("sampling=null", "greedy.max_tokens=24")
    words = ("eval", str(folder), "validation.jsonl", *OPTIONS, *greedy, "--out", str(out))
    run(work, "-m", "lockstep", *words)
    return json.loads((out / "results.json").read_text())["settings"]["greedy"]["figures"]["pass@1"]


def measure_loss(folder: Path, work: Path) -> list[float]:
    """Cross-entropy of each held-out answer, nats per token."""
    return [
        -logprobs.gather(1, ids[:, None]).mean().item()
        for logprobs, ids in score_answers(folder, folder, work)
    ]


def measure_divergence(student: Path, teacher: Path, work: Path) -> list[float]:
    """KL(teacher ‖ student) on each held-out answer, nats per token, over the whole vocabulary."""
    scored = zip(
        score_answers(teacher, teacher, work), score_answers(student, teacher, work), strict=True
    )
    return [(right.exp() * (right - own)).sum(1).mean().item() for (right, _), (own, _) in scored]


def score_answers(folder: Path, tokenizer: Path, work: Path) -> list[tuple[Any, Any]]:
    """The log-probabilities at each token of the held-out answers, and the tokens, in plain
    transformers.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    template = AutoTokenizer.from_pretrained(tokenizer).apply_chat_template
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = []
    for line in (work / "held_out_talks.jsonl").read_text().splitlines():
        talk = json.loads(line)["messages"]
        start = len(template(talk[:-1], add_generation_prompt=True, return_dict=False))
        ids = torch.tensor(template(talk, return_dict=False)[:-1])  # without the last newline
        if len(ids) > 320:
            continue
        with torch.no_grad():
            logits = model(ids[None]).logits[0, start - 1 : -1]
        found.append((logits.log_softmax(-1), ids[start:]))
    return found


def read_results(file: Path) -> dict[str, Any]:
    """What has been measured so far, also by another process."""
    return json.loads(file.read_text()) if file.exists() else {}


def main(model: str, trees: str, work: str, *names: str) -> None:
    """Runs what is missing."""
    folder = Path(work).resolve()
    make_inputs(Path(model).resolve(), Path(trees).resolve(), folder)
    file = folder / "results.json"
    for name in names or NAMES:
        if name not in read_results(file):
            found = train(name, Path(model).resolve(), folder)
            file.write_text(json.dumps(read_results(file) | {name: found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
