"""TensorBoard: event files in the run's folder, rewritten from the logs on each resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from lockstep.run.trackers.view import RunFacts, RunOutcome, SampleRows, TrackerView, build_table
from lockstep.system import yaml12

_FLUSH_S = 10  # maximum delay of a chart on screen


class TensorBoardView(TrackerView):
    """Metrics and timings as scalars, samples, recipe, environment and outcome as text."""

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self._folder = facts.folder / "tensorboard"
        self._newest = 0

    @property
    def run_location(self) -> str:
        return f"tensorboard --logdir {self._facts.folder}"

    def open_view(self, step: int) -> int:
        if self._folder.exists():
            shutil.rmtree(self._folder)
        # This makes a TensorBoard that read the old files drop everything from step 0 on.
        self._writer = SummaryWriter(str(self._folder), purge_step=0, flush_secs=_FLUSH_S)
        self._writer.add_text("recipe", _quote_markdown(yaml12.dump_yaml(self._facts.recipe)), 0)
        self._writer.add_text(
            "environment", _quote_markdown(json.dumps(self._facts.environment, indent=2)), 0
        )
        return -1

    def send_step(
        self, step: int, values: Mapping[str, float], samples: Mapping[str, SampleRows]
    ) -> None:
        """Writes one text per response of a step: TensorBoard lists steps one below the other."""
        self._newest = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        for kind, rows in samples.items():
            columns, cells = build_table(rows)
            for number, row in enumerate(cells):
                text = "\n".join(
                    f"{column}: {cell}" for column, cell in zip(columns, row, strict=True)
                )
                self._writer.add_text(f"{kind}/{number}", _quote_markdown(text), step)

    def close_view(self, outcome: RunOutcome) -> None:
        self._writer.add_text("outcome", outcome, self._newest)
        self._writer.close()


def _quote_markdown(text: str) -> str:
    """Quotes text for Markdown line by line: nothing becomes a heading, a link or HTML."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
