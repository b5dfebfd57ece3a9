"""A fault that is planted in one engine, and the place where `lockstep doctor locate` puts it.

    python -m benchmarks.mission.planted ENGINE MODEL --out FILE

Each fault is one line of an engine's code, edited in the process that computes with it. The truth
is that line.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.mission.programs import ROOT
from benchmarks.mutate_code import Edit, Swap, lines_of, patch_of
from lockstep.learners.rank import RankLearner
from lockstep.system.whole_files import write_whole
from lockstep_doctor.engines import EngineOptions, find_engine
from lockstep_doctor.examine import PairExamination, examine
from lockstep_doctor.hf import open_witnesses
from lockstep_doctor.operators import StackFrame
from lockstep_doctor.tap import Tap
from lockstep_doctor.taps.learners import attach_tap, open_learner
from lockstep_doctor.taps.rank import RankTap

TEXTS = (
    "The harbor was quiet at night, and the boats that had left in the morning were all back.",
    "To bake bread you need flour, water, salt, and more patience than most people have.",
)
TOKENS = 16
"""Of each text that engines read; a fault is the same at any length."""


@dataclass(frozen=True)
class Fault:
    """One edited line of an engine.

    Attributes:
        side: What the engine is for.
        what: The line computes now.
        module: It is in.
        before: The right code, which is there once.
        after: The wrong code.
    """

    side: str
    what: str
    module: str
    before: str
    after: str

    def edit(self) -> Edit:
        """The edit, with file and line; the module is not imported."""
        package, *path = self.module.split(".")
        origin = importlib.util.find_spec(package)
        assert origin is not None, f"{package} is installed where its fault is planted"
        return patch_of(
            str(Path(str(origin.origin)).parent.joinpath(*path).with_suffix(".py")),
            self.before,
            self.after,
        )


FAULTS = {
    "torch_sampler": Fault(
        "sampler",
        "attention's output times 0.9",
        "lockstep.samplers.torch.continuous",
        "return (out[0] if len(out) == 1 else torch.cat(out))[None]",
        "return 0.9 * (out[0] if len(out) == 1 else torch.cat(out))[None]",
    ),
    "vllm": Fault(
        "sampler",
        "attention's output rounded to bf16",
        "vllm.model_executor.models.llama",
        "attn_output = self.attn(q, k, v)",
        "attn_output = self.attn(q, k, v).bfloat16().float()",
    ),
    "torch": Fault(
        "learner",
        "attention's scores times 0.9",
        "lockstep.models.kernels",
        (
            "return run_torch_attention(query, key, value, mask, scaling).transpose(1, 2).flatten(0, "
            "1)"
        ),
        (
            "return run_torch_attention(query, key, value, mask, 0.9 * scaling).transpose(1, "
            "2).flatten(0, 1)"
        ),
    ),
    "megatron": Fault(
        "learner",
        "positions counted twice as fast",
        "lockstep.learners.megatron.model",
        "turns = cut.position[:, None].float()",
        "turns = 2 * cut.position[:, None].float()",
    ),
}
"""By engine, as `lockstep_doctor` calls it."""


@dataclass(frozen=True)
class Planted:
    """A fault, and what was found.

    Attributes:
        file: Of the edited line, from the folder of its package on.
        line: Its number.
        gap: Root mean square difference of log-probabilities from plain `transformers`, nats.
        cut: The end of the first segment that is wrong.
        removed: Share of the gap that is gone when the found places are undone.
        wrong: The engines that float64 says are wrong.
        named: The lines that `locate` prints of its first three suspects, as `file:line function`,
            innermost first.
        rank: The first suspect that the edited line is printed of, from 1; None: it is printed of
            none.
    """

    engine: str
    side: str
    what: str
    module: str
    file: str
    line: int
    gap: float
    cut: str
    removed: float
    wrong: list[str]
    named: list[list[str]]
    rank: int | None


def plant(fault: Fault) -> None:
    """Lets this process run the edited line, from now on."""
    importlib.import_module(fault.module)  # whose functions are edited
    swap = Swap.of(fault.edit())
    for function, code in zip(swap.functions, swap.after, strict=True):
        function.__code__ = code


def attach_faulty_megatron(build: Callable[[], RankLearner], name: str, neighbors: int) -> RankTap:
    """The tap on a rank of the Megatron learner, in whose process the fault is planted."""
    learner = build()  # before Megatron is imported here, as `attach` does
    plant(FAULTS["megatron"])
    return attach_tap(lambda: learner, name, neighbors)


def open_faulty(engine: str, model: Path) -> AbstractContextManager[Tap]:
    """Opens an engine with its fault."""
    options = EngineOptions()
    if engine == "megatron":
        return open_learner(model, options, engine, attach_faulty_megatron)
    if engine == "vllm":
        from lockstep.samplers.vllm.environment import prepare_process

        prepare_process()  # before vLLM is imported
    plant(FAULTS[engine])
    return find_engine(engine)(model, options)


def find_fault(engine: str, model: Path) -> Planted:
    """Plants an engine's fault, and locates it beside plain `transformers`."""
    fault = FAULTS[engine]
    requests = list(map(partial(_read_text, AutoTokenizer.from_pretrained(model)), TEXTS))
    witness, rounded = open_witnesses(model, "cpu", torch.float64, torch.float32)
    with (
        open_faulty(engine, model) as faulty,
        find_engine("hf")(model, EngineOptions()) as reference,
    ):
        found = examine(reference, faulty, requests, witness, [rounded, rounded])
    return describe(engine, fault, fault.edit(), found)


def _read_text(tokenizer: Any, text: str) -> Tensor:
    return torch.tensor(tokenizer(text).input_ids[:TOKENS])


def describe(engine: str, fault: Fault, edit: Edit, found: PairExamination) -> Planted:
    """What was found, beside the truth."""
    places = found.location.places
    printed = [one.operator.stack[:2] for place in places[:1] for one in place.suspects[:3]]
    hits = [
        place
        for place, frames in enumerate(printed, start=1)
        if any(_is_at(frame, edit) for frame in frames)
    ]
    return Planted(
        engine=engine,
        side=fault.side,
        what=fault.what,
        module=fault.module,
        file=_shorten(edit.file),
        line=edit.line,
        gap=found.location.gap,
        cut=str(places[0].segments[0].end) if places else "",
        removed=found.location.removed,
        wrong=list(places[0].wrong_engines) if places else [],
        named=[
            [f"{_shorten(frame.file)}:{frame.line} {frame.function}" for frame in frames]
            for frames in printed
        ],
        rank=hits[0] if hits else None,
    )


def _is_at(frame: StackFrame, edit: Edit) -> bool:
    return frame.file == edit.file and frame.line in lines_of(edit)


def _shorten(file: str) -> str:
    """A path from the folder of its package on, for packages that are installed or in this
    repository.
    """
    _, installed, inside = file.rpartition("/site-packages/")
    return inside if installed else os.path.relpath(file, ROOT)


def main() -> None:
    """Entry point."""
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mission.planted", description=about)
    parser.add_argument("engine", choices=list(FAULTS))
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = find_fault(options.engine, options.model)
    write_whole(options.out, [json.dumps(asdict(found), indent=1).encode(), b"\n"])


if __name__ == "__main__":
    main()
