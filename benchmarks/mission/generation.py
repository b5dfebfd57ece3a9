"""`lockstep generate` over 500 prompts, once undisturbed and once killed and resumed: the bytes
must be equal.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.mission.judgments import JUDGED
from benchmarks.mission.opposites import HELD_OUT, TRAINED
from benchmarks.mission.programs import MissionError, Program, run_all

PROMPTS = 500
BLOCK = 20
"""Prompts that are written together."""
FINISHED_BLOCKS = 7
"""The process is killed when so many blocks are written."""
QUESTIONS = (
    "What is the opposite of {word}? Answer with one word.",
    "Use the word {word} in a short sentence.",
    "What does {word} mean?",
)
WHOLE = "generated"
KILLED = "generated_killed"


def measure_generation(model: Path, work: Path) -> dict[str, Any]:
    """Generates twice, or what is missing of it.

    Returns how far the killed process was, and both files' digests.
    """
    _write_prompts(work / "prompts.jsonl")
    run_all([_program(model, WHOLE)], work, 1)
    note = work / "killed.json"
    if not note.exists():
        note.write_text(json.dumps(_kill(_program(model, KILLED), work)))
    run_all([_program(model, KILLED)], work, 1)
    files = [work / name / "generations.jsonl" for name in (WHOLE, KILLED)]
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    summary = json.loads((work / WHOLE / "summary.json").read_text())
    return {
        **json.loads(note.read_text()),
        "sha256": digests,
        "bytes": files[0].stat().st_size,
        "summary": summary,
    }


def describe_generation(found: dict[str, Any]) -> str:
    """The line of the page."""
    equal = found["sha256"][0] == found["sha256"][1]
    word = "Holds" if equal else "Does not hold"
    outcome = "are byte for byte those" if equal else "are not those"
    return (
        f"- **{word}**: generation goes on after a kill. `lockstep generate` over {PROMPTS} "
        f"prompts was killed with SIGKILL when {found['written']} prompts were written; after the "
        f"same command again its {found['bytes']:,} bytes {outcome} of a run that nothing "
        f"disturbed (sha256 {found['sha256'][0][:12]} and {found['sha256'][1][:12]})."
    )


def _write_prompts(file: Path) -> None:
    words = [*JUDGED, *TRAINED, *TRAINED.values(), *HELD_OUT]
    asked = [question.format(word=word) for question in QUESTIONS for word in words]
    rows = [json.dumps({"question": question}) for question in asked[:PROMPTS]]
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def _program(model: Path, folder: str) -> Program:
    options = ("data.max_prompt_tokens=32", "sampling.max_tokens=6", "learner.device=cpu")
    more = ("learner.dtype=fp32", f"run.save_every={BLOCK}", "--out", folder)
    return Program(folder, ("lockstep", "generate", str(model), "prompts.jsonl", *options, *more))


def _kill(program: Program, work: Path) -> dict[str, int]:
    """Starts the program anew and kills it in the midst of a block.

    Returns the number of prompts that were written.
    """
    folder = work / program.name
    shutil.rmtree(folder, ignore_errors=True)
    process = program.start(work)
    while len(list((folder / "parts").glob("*.jsonl"))) < FINISHED_BLOCKS:
        if process.poll() is not None:
            raise MissionError(
                f"{program.name} ended with code {process.returncode} before it could be killed"
            )
        time.sleep(0.2)
    process.kill()
    process.wait()
    parts = list((folder / "parts").glob("*.jsonl"))
    return {"written": sum(len(part.read_text().splitlines()) for part in parts)}
