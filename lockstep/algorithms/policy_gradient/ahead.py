"""One-step-ahead sampling: while a step learns, the sampler generates the rollouts of the next.

    learner | sync π_t  | learn from y_t ~ π_(t−1)          | wait | hooks | sync π_(t+1)  | …
    sampler |           | sample and score y_(t+1) ~ π_t           |       |               | …

The first rollouts come from the current policy; all others come from weights that are one step old.
`OneStepAhead` implements the usual step interface, and nothing is in flight from the loop's point
of view. Checkpoints do not hold rollouts that were sampled ahead; they hold the weights that
sampled them, so that a resumed run samples bit-identical ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors.torch import load_file

from lockstep.algorithms.job import RunLength, StepResult
from lockstep.algorithms.policy_gradient.step import (
    AnyPolicySettings,
    PolicyGradientWorkers,
    SampledStep,
    draw_rollouts,
)
from lockstep.core.metrics import Metrics
from lockstep.core.types import PhaseTimer
from lockstep.learners.boxes import FileContents
from lockstep.learners.saving import COUNTERS, StateWriter
from lockstep.monitor.agreement import Agreement
from lockstep.system.background import run_in_background, wait_for_all
from lockstep.weight_sync.sync import WeightSnapshot

_WEIGHTS = "weights.safetensors"
_PROBE = "probe.safetensors"


@dataclass
class OneStepAhead:
    """A `Step` whose rollouts are sampled during the previous step; its state is checkpointed.

    Attributes:
        workers: The models, and the session of a sampler in separate processes.
        settings: The options.
        agreement: Compares learner and sampler on rollouts of older weights.
        learn: The training part of the step.
        version: Version of the weights at the start of a step.
        run_length: The length of the run, so that nothing is sampled past its end.
        background_phase: Times the phases of the sampling thread.
        abandon: Stops the sampler immediately, after an error while it is working.
    """

    workers: PolicyGradientWorkers
    settings: AnyPolicySettings
    agreement: Agreement
    learn: Callable[[int, SampledStep], StepResult]
    version: Callable[[int], int]
    run_length: RunLength
    background_phase: PhaseTimer
    abandon: Callable[[], object]
    # copy of the weights that sample for the next step
    _snapshot: WeightSnapshot | None = field(default=None, init=False)
    _begun: Future[SampledStep] | None = field(default=None, init=False)
    _writer: StateWriter = field(default_factory=StateWriter, init=False)

    def __call__(self, step: int, position: int) -> StepResult:
        """Trains on the rollouts that were sampled during the previous step.

        Raises:
            SamplerLost: Or any other sampling error; the learners are unchanged since the previous
                step.
        """
        sampled = self._take_rollouts(step, position)
        try:
            compared = self._begin_sampling(step, sampled)
            result = self.learn(step, replace(sampled, metrics=sampled.metrics + compared))
            # the next step raises an error of the sampler, since this step is done
            if self._begun is not None:
                with self.workers.phase("wait for rollouts"):
                    wait_for_all([self._begun])
        except BaseException:
            if self._begun is not None:
                self.abandon()
            raise
        return result

    def save(self, folder: Path) -> None:
        """Saves the weights that sampled for the next step; see `Learner.save`."""
        if self._snapshot is None:  # nothing sampled yet
            return
        files = {
            _WEIGHTS: self._snapshot.tensors,
            _PROBE: {"logprob": self._snapshot.probe_logprob},
        }
        self._writer.begin_save(
            folder,
            {name: FileContents(tensors) for name, tensors in files.items()},
            {"version": self._snapshot.version},
            still=True,
        )

    def poll_save(self, wait: bool) -> bool:
        return self._writer.poll_writing(wait)

    def load(self, folder: Path) -> None:
        """Restores the weights that sampled for the next step; see `Learner.load`.

        A checkpoint saved without `one_step_ahead` has none.
        """
        if not folder.exists():
            return
        version = int(json.loads((folder / COUNTERS).read_text(encoding="utf-8"))["version"])
        self._snapshot = WeightSnapshot(
            version, load_file(folder / _WEIGHTS), load_file(folder / _PROBE)["logprob"]
        )

    def _take_rollouts(self, step: int, position: int) -> SampledStep:
        """Returns the rollouts sampled ahead; the first step after a start samples its own."""
        begun = self._begun
        self._begun = None
        if begun is not None:
            return begun.result()
        snapshot = self._snapshot or self._copy_weights(step)
        with (
            self.workers.phase("generate"),
            self.workers.collector.engine.at(snapshot.version, snapshot) as sync_metrics,
        ):
            sampled = self._draw_rollouts(position, sync_metrics)
        self._snapshot = snapshot
        return sampled

    def _begin_sampling(self, step: int, sampled: SampledStep) -> Metrics:
        """Compares the rollouts, syncs the current weights and starts sampling for the next step.

        The current weights replace the ones that sampled for this step only after the sync: if the
        sampler is lost during the sync, or learner and sampler disagree, the checkpoint must hold
        the old ones.
        """
        snapshot = self._copy_weights(step)
        with self.workers.phase("watch"):
            assert sampled.read_N is not None, (
                "rollouts that are sampled one step ahead are read back"
            )
            compared = self.agreement.compare(
                step + 1, snapshot.version, sampled.rollouts.batch, snapshot, sampled.read_N
            )
        if not self.run_length.is_over(step + 1, sampled.position):
            session = ExitStack()
            sync_metrics = session.enter_context(
                self.workers.collector.engine.at(snapshot.version, snapshot)
            )

            def draw() -> SampledStep:
                with session, self.background_phase("generate"):
                    return self._draw_rollouts(sampled.position, sync_metrics)

            self._begun = run_in_background(draw)
        self._snapshot = snapshot
        return compared

    def _draw_rollouts(self, position: int, sync_metrics: Metrics) -> SampledStep:
        """Samples a step's rollouts, then has the sampler rescore some with the same weights."""
        sampled = draw_rollouts(position, sync_metrics, self.workers, self.settings)
        return replace(sampled, read_N=self.agreement.read_back(sampled.rollouts.batch))

    def _copy_weights(self, step: int) -> WeightSnapshot:
        """Copies the policy's weights, or returns the existing copy of this version."""
        version = self.version(step)
        if self._snapshot is not None and self._snapshot.version == version:
            return self._snapshot
        with self.workers.phase("weight_sync"):
            return self.workers.collector.engine.take_snapshot(version)
