"""Writes a script that fails on a fault and passes once it is fixed: one segment of one engine,
with fixed inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.locate import GapLocation
from lockstep_doctor.modules import ModuleTap

_SCRIPT = '''"""{what}"""
import collections, sys, torch, safetensors.torch

{builder}
saved = safetensors.torch.load_file(__file__[: -len("repro.py")] + "inputs.safetensors")
goal, found, read_to = "{goal}", [], collections.Counter()
def put(address, values):  # write the segment's inputs, and keep its output
    for place, value in enumerate(values if isinstance(values, tuple) else (values,)):
        name = f"{{address}}|{{place}}"
        if name == goal:
            found.append(value.detach().cpu().double().flatten())
        elif name in saved:
            piece = saved[name].flatten()[read_to[name] :][: value.numel()]
            value.copy_(piece.reshape(value.shape) if len(piece) == value.numel() else value)
            read_to[name] += value.numel()
for path in {{name.split("|")[0] for name in saved if "|" in name}}:
    module = model.get_submodule(path)
    module.register_forward_pre_hook(lambda _, values, path=path: put(path + "|in", values))
    module.register_forward_hook(lambda _, inputs, values, path=path: put(path + "|out", values))
with torch.no_grad():
    logits = read(saved["tokens"]).cpu().double().flatten()
own, right = logits if goal == "output" else torch.cat(found), saved[goal].double().flatten()
error = float((own - right).norm() / right.norm())
print(f"relative error {{error:.2g}}; rounding explains {tolerance:.2g}")
sys.exit(not error <= {tolerance:.2g})
'''


_ENGINE_SCRIPT = '''"""{what}"""

import sys, torch, safetensors.torch
from pathlib import Path
from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.engines import EngineOptions, find_engine

saved = safetensors.torch.load_file(__file__[: -len("repro.py")] + "inputs.safetensors")
tokens, right = saved.pop("tokens"), saved.pop("right").double().flatten()
if __name__ == "__main__":  # ranks import this file again
    with find_engine("{engine}")(Path({folder!r}), {options!r}) as tap:
        forced = {{CutPoint.from_name(name): value for name, value in saved.items()}}
        seen = tap.run(tokens, forced).seen
    found = seen[CutPoint.from_name("{end}")].cpu().double().flatten()
    error = float((found - right).norm() / right.norm())
    print(f"relative error {{error:.2g}}; rounding explains {tolerance:.2g}")
    sys.exit(not error <= {tolerance:.2g})
'''


def write_reproduction(folder: Path, tap: ModuleTap, found: GapLocation, tokens_T: Tensor) -> Path:
    """Writes `repro.py` and `inputs.safetensors` for the first segment of a location; returns the
    script.

    Args:
        tap: The wrong engine, with its builder.
        found: Result of `locate` with at least one segment.
    """
    goal = tap.find_address(found.all_segments[0].end)
    layer = found.all_segments[0].end.layer
    assert goal is not None, "a segment ends at a cut of its tap"
    inputs: dict[str, Tensor] = {}
    for cut, value in found.seen.items():
        name = tap.find_address(cut) if cut.layer in (None, layer) else None
        if name is not None:
            inputs[name] = value
    builder = "\n".join(line for line in tap.builder.splitlines() if line.strip())
    script = _SCRIPT.format(
        what=_describe_fault(tap.name, found),
        builder=builder,
        goal=goal,
        tolerance=found.places[0].tolerance,
    )
    return write_script(folder, script, inputs | {goal: _find_right(found), "tokens": tokens_T})


def write_engine_reproduction(
    folder: Path,
    engine: str,
    model: Path,
    options: EngineOptions,
    found: GapLocation,
    tokens_T: Tensor,
) -> Path:
    """Like `write_reproduction`, for an engine that is opened by name, such as one in separate
    processes.

    Args:
        model: Folder of the model.
        found: Result of `locate` with at least one segment.
    """
    end = found.all_segments[0].end
    script = _ENGINE_SCRIPT.format(
        what=_describe_fault(engine, found),
        engine=engine,
        folder=str(model.resolve()),
        options=options,
        end=end,
        tolerance=found.places[0].tolerance,
    )
    inputs = {str(cut): value for cut, value in found.seen.items() if cut != end}
    return write_script(folder, script, inputs | {"right": _find_right(found), "tokens": tokens_T})


def _describe_fault(engine: str, found: GapLocation) -> str:
    return f"{engine}: {found.all_segments[0]} returns wrong values for the given inputs."


def _find_right(found: GapLocation) -> Tensor:
    """Returns the right output of the first segment: the float64 value if it shows an engine to be
    wrong, else the reference's.
    """
    place = found.places[0]
    if place.exact is not None and place.wrong_engines:
        return place.exact
    return found.seen[place.segments[0].end]


def write_script(folder: Path, script: str, values: Mapping[str, Tensor]) -> Path:
    """Writes a script and its inputs; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = {name: value.detach().cpu().contiguous().clone() for name, value in values.items()}
    safetensors.torch.save_file(saved, folder / "inputs.safetensors")
    (folder / "repro.py").write_text(script, encoding="utf-8")
    return folder / "repro.py"
