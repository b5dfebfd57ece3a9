"""Runs a command, and writes what it printed as an SVG: animated and ten times as fast, or still.

python scripts/record_run.py --out docs/pictures/recorded_run.svg lockstep train ppo_quiz
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import textwrap
import time
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

SPEED = 10
HOLD_S = 8.0
"""Time for which the end is shown before the recording begins again."""
ROWS = 18
COLUMNS = 108
LINE = 17
WIDTH = 760
STYLE = """
  rect { fill: #f6f8fa; stroke: #d1d9e0 }
  text { font: 11px ui-monospace, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
  @media (prefers-color-scheme: dark) {
    rect { fill: #151b23; stroke: #3d444d } text { fill: #f0f6fc }
  }
  @media (prefers-reduced-motion: reduce) { .lines { animation: none !important } }
"""


def record(command: list[str]) -> tuple[list[tuple[float, str]], float]:
    """Runs a command. Returns its lines, each with the second it came at, and its duration."""
    begun = time.monotonic()
    lines = [(0.0, f"$ {shlex.join(command)}")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        assert program.stdout is not None, "it is a pipe"
        for line in program.stdout:
            lines.append((time.monotonic() - begun, line.rstrip()))
    if program.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {program.returncode}")
    return lines, time.monotonic() - begun


def wrap(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Wraps long lines, keeping their indentation."""
    wrapped: list[tuple[float, str]] = []
    for at, line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        parts = textwrap.wrap(line, COLUMNS, subsequent_indent=f"{indent}    ") or [""]
        wrapped += [(at, part) for part in parts]
    return wrapped


def draw(lines: list[tuple[float, str]], duration: float, rows: int = ROWS) -> str:
    """Draws lines that move up as they are printed, unless there is room for all of them."""
    whole = duration / SPEED + HOLD_S
    frames = [
        f"{100 * at / SPEED / whole:.2f}% {{ transform: translateY({LINE * (rows - number)}px) }}"
        for number, (at, _) in enumerate(lines, 1)
    ]
    end = f"translateY({LINE * (rows - len(lines))}px)"
    animation = f"animation: print {whole:.1f}s step-end infinite" if rows < len(lines) else ""
    texts: list[str] = []
    for number, (_, line) in enumerate(lines, 1):
        shown = line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…"
        texts.append(f'<text x="12" y="{LINE * number}">{escape(shown)}</text>')
    height = LINE * rows + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f"aria-label={quoteattr(lines[0][1])}>\n<style>{STYLE}"
        f"  @keyframes print {{ {' '.join(frames)} 100% {{ transform: {end} }} }}\n"
        f"  .lines {{ transform: {end}; {animation} }}\n"
        "</style>\n"
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>\n'
        f'<clipPath id="screen"><rect y="4" width="{WIDTH}" height="{LINE * rows + 1}"/>'
        "</clipPath>\n"
        f'<g clip-path="url(#screen)"><g class="lines">{"".join(texts)}</g></g>\n</svg>\n'
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--still", action="store_true", help="show all lines, wrapped")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    lines, duration = record(options.command)
    if options.still:
        lines = wrap(lines)
        picture = draw(lines, duration, len(lines))
    else:
        picture = draw(lines, duration)
    options.out.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
