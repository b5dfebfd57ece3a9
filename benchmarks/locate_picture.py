"""Draws how `locate` finds a place, as one SVG: the example's error at each cut, without and with intervention.

python -m benchmarks.locate_picture --out docs/pictures/locate.svg
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.picture import LEFT, RIGHT, STYLE, WIDTH, Panel
from lockstep.report.held_out import Figure
from lockstep_doctor import OUTPUT, CutPoint, ModuleTap
from lockstep_doctor.locate import LOOSE

LAYERS, FAULTY, TOKENS = 3, 1, 32
HEIGHT = 330


def measure() -> tuple[list[CutPoint], list[float], list[float]]:
    """The cuts of a small Llama, and the error at each of a copy whose attention is scaled by 0.8 in one layer."""
    sizes: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    torch.manual_seed(0)
    right: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=LAYERS, initializer_range=0.1)).eval()
    wrong = copy.deepcopy(right)
    wrong.set_attn_implementation("eager")  # another kernel, which rounds differently
    wrong.model.layers[FAULTY].self_attn.scaling *= 0.8
    tokens_T = torch.randint(0, 97, (TOKENS,))
    reference, other = ModuleTap(right, "reference"), ModuleTap(wrong, "other")
    seen = reference.run(tokens_T, {}).seen
    forced = {cut: value for cut, value in seen.items() if cut != OUTPUT}
    alone, replayed = other.run(tokens_T, {}).seen, other.run(tokens_T, forced).seen
    cuts = [cut for cut in seen if "." not in cut.stage]
    return cuts, [_error(seen[cut], alone[cut]) for cut in cuts], [_error(seen[cut], replayed[cut]) for cut in cuts]


def draw(cuts: Sequence[CutPoint], alone: Sequence[float], replayed: Sequence[float]) -> str:
    """The picture."""
    panel = Panel(40, 270, 1e-8, 1.0, len(cuts) - 1, logarithmic=True)
    lines = {"bound": alone, "held": replayed}
    drawn = [
        panel.draw_line([Figure(place, error, error, error) for place, error in enumerate(errors)], name)
        for name, errors in lines.items()
    ]
    place = max(range(len(cuts)), key=lambda at: replayed[at])
    x, y = panel.x(place), panel.y(replayed[place])
    starts = [at for at, cut in enumerate(cuts) if cut.layer is not None and cut.layer != cuts[at - 1].layer]
    names = [
        f'<text class="small" x="{panel.x(at):.1f}" y="288">layer {cuts[at].layer}</text>'
        f'<line class="grid" x1="{panel.x(at):.1f}" x2="{panel.x(at):.1f}" y1="40" y2="270"/>'
        for at in starts
    ]
    parts = [
        f'<text class="title" x="{LEFT}" y="20">relative error of the example at each cut, beside the reference</text>',
        *(panel.draw_level(10.0**power, f"1e{power}") for power in range(-8, 1, 2)),
        *names,
        panel.draw_level(LOOSE, "", "gap", "tolerance"),
        *drawn,
        f'<circle class="heldfill" cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
        f'<text class="heldfill" x="{x + 8:.1f}" y="{y + 4:.1f}">{cuts[place]}: same inputs, another output</text>',
        f'<text class="boundfill" x="{RIGHT + 8}" y="{panel.y(alone[-1]) + 4:.1f}">error at the output</text>',
        f'<text class="heldfill" x="{RIGHT + 8}" y="{panel.y(max(replayed[-1], 1e-8)) - 4:.1f}">intervention</text>',
        f'<text class="small" x="{LEFT}" y="314">Red: the engine alone. Blue: at every cut it is given the reference’s '
        "value, and only what is wrong by itself still differs.</text>",
    ]
    said = f"Without intervention the error begins at {cuts[place]} and stays; with it, it is there alone."
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _error(right: Tensor, own: Tensor) -> float:
    return float((own.double() - right.double()).norm() / right.double().norm().clamp(min=1e-30))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.parse_args().out.write_text(draw(*measure()), encoding="utf-8")


if __name__ == "__main__":
    main()
