"""What the doctor says about one edited program."""

from __future__ import annotations

import contextlib
import copy
import io
import runpy
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import CodeType

import torch
from torch import Tensor, nn

from benchmarks.lines import lines_that_run, watch_lines
from benchmarks.mutate_code import Edit, Swap, lines_of
from benchmarks.mutated_programs import TOKENS, Program
from lockstep_doctor import modules
from lockstep_doctor.locate import LEAST, GapLocation, locate, measure_gap
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.operators import StackFrame
from lockstep_doctor.reproduction import write_reproduction


@dataclass(frozen=True)
class Score:
    """A row of results.

    Attributes:
        program: Which was edited.
        kind: Of the edit.
        file: Which it is in.
        line: At which.
        function: In which.
        node: Place of the node in the file's tree.
        text: The code before.
        outcome: `kept`, `equivalent` or `crashed`.
        gap: Root mean square difference of log-probabilities, nats.
        segment: True if the segment that was opened ran the line, or it reads a weight that the
            line changed.
        in_line: True if the line is among the first three places.
        in_function: True if its function is.
        reproduces: True if the script fails with the edit and passes without it.
        removed: Share of the gap that undoing the segments removes.
        cpu_s: Seconds of CPU that locating took.
        found: The segment and the first places, for people.
    """

    program: str
    kind: str
    file: str
    line: int
    function: str
    node: int
    text: str
    outcome: str
    gap: float = 0.0
    segment: bool = False
    in_line: bool = False
    in_function: bool = False
    reproduces: bool = False
    removed: float = 0.0
    cpu_s: float = 0.0
    found: tuple[str, ...] = ()


class Judge:
    """A program as it is, and its sides with one edit after another.

    Args:
        program: Which.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tokens = torch.randint(0, 97, (TOKENS,), generator=torch.Generator().manual_seed(3))
        self.model = program.build()
        self.reference = ModuleTap(self.model, "original", read=program.read)
        self.witness = ModuleTap(program.witness(), "float64")
        self.right = self.reference.run(self.tokens, {})
        rounding = measure_gap(
            self.right.logits, self.witness.run(self.tokens, {}).logits, self.tokens
        )
        self.least = max(3 * rounding, LEAST)

    def ran(self) -> set[tuple[str, int]]:
        """Lines of the program's files that run when it builds and reads."""
        with lines_that_run(list(self.program.files)) as ran:
            self.program.read(self.program.build(), self.tokens)
        return ran

    def score(self, edit: Edit) -> Score:
        """Makes one edit, and scores what is said about it."""
        about = (
            self.program.name,
            edit.kind,
            edit.file,
            edit.line,
            edit.function,
            edit.node,
            edit.text,
        )
        try:
            tap = EditedTap(self.program, edit)
            wrong = tap.run(self.tokens, {})
            fits = wrong.logits.shape == self.right.logits.shape
        except Exception:  # an edit may break anything
            return Score(*about, "crashed")
        gap = measure_gap(self.right.logits, wrong.logits, self.tokens) if fits else 0.0
        if not fits or gap <= self.least:
            return Score(*about, "equivalent" if fits else "crashed", gap)
        return self._located(about, edit, tap, gap)

    def _located(
        self,
        about: tuple[str, str, str, int, str, int, str],
        edit: Edit,
        tap: EditedTap,
        gap: float,
    ) -> Score:
        begun = time.process_time()
        with watch_lines(modules) as traced:
            found = locate(self.reference, tap, self.tokens, self.witness)
        cpu_s = time.process_time() - begun
        steps = [suspect.operator for place in found.places[:1] for suspect in place.suspects]
        first = [frame for step in steps[:3] for frame in step.stack[:2]]
        ran = [*chain(*(step.stack for step in steps)), *chain(*traced[:2])]
        return Score(
            *about,
            "kept",
            gap,
            any(_is_at(frame, edit) for frame in ran) or self._reads_changed(tap, found),
            any(_is_at(frame, edit) for frame in first),
            any(_is_in(frame, edit) for frame in first),
            bool(found.all_segments) and self._reproduces(tap, found),
            found.removed,
            cpu_s,
            (
                *map(str, found.all_segments[:2]),
                *(f"{Path(f.file).name}:{f.line} {f.function}" for f in first),
            ),
        )

    def _reads_changed(self, tap: EditedTap, found: GapLocation) -> bool:
        """True if the edit changed a weight, and the first segment reads it."""
        address = (
            tap.find_address(found.all_segments[0].end) if found.all_segments else None
        ) or ""
        own = tap.model.state_dict()
        right = self.model.state_dict()
        changed = [
            name
            for name, tensor in right.items()
            if name not in own or not torch.equal(own[name], tensor)
        ]
        return any(name.startswith(f"{address.split('|')[0]}.") for name in changed)

    def _reproduces(self, tap: EditedTap, found: GapLocation) -> bool:
        """True if the script of a location fails with the edited model, and passes with the
        original.
        """
        copies = {"edited": copy.deepcopy(tap.model), "original": copy.deepcopy(self.model)}
        RUNNING["edited"] = copies["edited"], lambda tokens_T: tap.read(copies["edited"], tokens_T)
        RUNNING["original"] = (
            copies["original"],
            lambda tokens_T: self.program.read(copies["original"], tokens_T),
        )
        codes: dict[str, int | None] = {}
        with tempfile.TemporaryDirectory() as folder:
            for name in copies:
                held = ModuleTap(tap.model, name, _BUILDER.format(name=name))
                script = write_reproduction(Path(folder), held, found, self.tokens)
                codes[name] = run_script(script)
        return codes == {"edited": 1, "original": 0}


def run_script(script: Path) -> int | None:
    """Runs a Python script in this process. Returns its exit code; None: it did not exit."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script))
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # Python, too, would exit with 1
        return 1
    return None


class EditedTap(ModuleTap):
    """A program with an edit, which is in force while it builds and reads, and at no other time."""

    def __init__(self, program: Program, edit: Edit) -> None:
        self._program, self.swap = program, Swap.of(edit)
        super().__init__(self.build(self.swap.after), "edited", read=self.read)

    def build(self, codes: Sequence[CodeType]) -> nn.Module:
        """Builds the model with the code of one side."""
        with self.swap.running(codes):
            return self._program.build()

    def read(self, model: nn.Module, tokens_T: Tensor) -> Tensor:
        """Reads with the edited code."""
        with self.swap.running(self.swap.after):
            return self._program.read(model, tokens_T)


RUNNING: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {}
"""The models of the reproduction that is being run, by name, and how each reads."""

_BUILDER = """from benchmarks.mutation_score import RUNNING
model, read = RUNNING["{name}"]"""


def _is_at(frame: StackFrame, edit: Edit) -> bool:
    return frame.file == edit.file and frame.line in lines_of(edit)


def _is_in(frame: StackFrame, edit: Edit) -> bool:
    return frame.file == edit.file and frame.function.split(".<locals>.<", 1)[0] == edit.function
