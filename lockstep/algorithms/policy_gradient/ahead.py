"""One step ahead: while a step learns, the sampler draws what the next step will learn from.

    learner | refit π_t | learn from y_t ~ π_(t−1)          | wait | hooks | refit π_(t+1) | …
    sampler |           | draw and score y_(t+1) ~ π_t             |       |               | …

The first responses are the policy's own; all others come from the weights of one step before. `Ahead` is a step like
any other: the loop, and all that happens between two steps, find nothing under way. What was drawn ahead is in no
checkpoint; the weights that drew it are, so that a run that goes on draws it again, to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors.torch import load_file

from lockstep.algorithms.policy_gradient.step import SampledStep
from lockstep.algorithms.step import RunLength, StepResult
from lockstep.background import run_in_background, wait_for_all
from lockstep.learners.boxes import FileContents
from lockstep.learners.saving import COUNTERS, StateWriter
from lockstep.metrics import Metrics
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.types import Phase
from lockstep.weight_sync.sync import Snapshot

_WEIGHTS, _PROBE = "weights.safetensors", "probe.safetensors"


@dataclass
class Ahead:
    """A `Step`; a checkpoint holds its state.

    Attributes:
        engine: Of a sampler that works in processes of its own.
        draw: From a position in the data and what a refit attested to what a step learns from; in an open bracket.
        learn: The rest of the step.
        compare: Step from 0, the weights that the learner has, and what was drawn to how both sides agree on it; asks
            the sampler, so that nothing may be under way.
        version: Of the weights when a step begins.
        run_length: Nothing is drawn for a step that never comes.
        phase: Times all this.
        beside: Times what goes on meanwhile.
        abandon: Ends the sampler at once; for errors while it works.
    """

    engine: SamplerSession
    draw: Callable[[int, Metrics], SampledStep]
    learn: Callable[[int, SampledStep], StepResult]
    compare: Callable[[int, Snapshot, SampledStep], Metrics]
    version: Callable[[int], int]
    run_length: RunLength
    phase: Phase
    beside: Phase
    abandon: Callable[[], object]
    _snapshot: Snapshot | None = field(default=None, init=False)  # of the weights that draw for the next step
    _begun: Future[SampledStep] | None = field(default=None, init=False)
    _writer: StateWriter = field(default_factory=StateWriter, init=False)

    def __call__(self, step: int, position: int) -> StepResult:
        """Learns from what was drawn during the step before.

        Raises:
            SamplerLost: And whatever else drawing raised; the learners are then as they were after the step before.
        """
        drawn = self._take_rollouts(step, position)
        try:
            compared = self._begin(step, drawn)
            result = self.learn(step, replace(drawn, metrics=drawn.metrics + compared))
            self._settle()
        except BaseException:
            if self._begun is not None:
                self.abandon()
            raise
        return result

    def save(self, folder: Path) -> None:
        """As `Learner.save`: the weights that draw for the next step."""
        if self._snapshot is None:  # nothing was drawn yet
            return
        files = {_WEIGHTS: self._snapshot.tensors, _PROBE: {"logprob": self._snapshot.probe_logprob}}
        self._writer.begin(
            folder,
            {name: FileContents(tensors) for name, tensors in files.items()},
            {"version": self._snapshot.version},
            still=True,
        )

    def poll_save(self, wait: bool) -> bool:
        return self._writer.poll(wait)

    def load(self, folder: Path) -> None:
        """As `Learner.load`. A run that was not one step ahead before has none; its next step draws for itself."""
        if not folder.exists():
            return
        version = int(json.loads((folder / COUNTERS).read_text())["version"])
        self._snapshot = Snapshot(version, load_file(folder / _WEIGHTS), load_file(folder / _PROBE)["logprob"])

    def _take_rollouts(self, step: int, position: int) -> SampledStep:
        """What was drawn ahead; in the first step, and in the first that goes on from a checkpoint, drawn now."""
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun.result()
        snapshot = self._snapshot or self._copy_weights(step)
        with self.phase("generate"), self.engine.at(snapshot.version, snapshot) as refitted:
            drawn = self.draw(position, refitted)
        self._snapshot = snapshot
        return drawn

    def _begin(self, step: int, drawn: SampledStep) -> Metrics:
        """Compares what was drawn, and lets the sampler draw for the next step, with the weights as they are now.

        Not before it has them may they take the place of the weights that drew for this step: if it is lost over the
        refit, or both sides disagree, the checkpoint must hold those.
        """
        snapshot = self._copy_weights(step)
        with self.phase("watch"):
            compared = self.compare(step, snapshot, drawn)
        if not self.run_length.over(step + 1, drawn.position):
            bracket = ExitStack()
            refitted = bracket.enter_context(self.engine.at(snapshot.version, snapshot))
            self._begun = run_in_background(lambda: self._draw(drawn.position, refitted, bracket))
        self._snapshot = snapshot
        return compared

    def _draw(self, position: int, refitted: Metrics, bracket: ExitStack) -> SampledStep:
        with bracket, self.beside("generate"):
            return self.draw(position, refitted)

    def _settle(self) -> None:
        """Waits for the sampler. An error of its is kept for the next step, since this one is done."""
        if self._begun is not None:
            with self.phase("wait for rollouts"):
                wait_for_all([self._begun])

    def _copy_weights(self, step: int) -> Snapshot:
        """A copy of the weights; the one that is there, while the policy rests."""
        version = self.version(step)
        if self._snapshot is not None and self._snapshot.version == version:
            return self._snapshot
        with self.phase("refit"):
            return self.engine.snapshot(version)
