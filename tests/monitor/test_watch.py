"""Agreement in training: an engine that is off stops the run; faults that no attestation sees raise
an alarm with the right name, and health raises none.

The faults are in samplers that run: what is wrong is which weights they compute with, not which
numbers they report.
"""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from killing import assert_same, final
from tiers import full
from torch import Tensor
from training import step_rows
from transformers import PreTrainedModel

from lockstep.cli import main
from lockstep.core.types import Request, SamplingParams
from lockstep.report.log import read_metrics
from lockstep.rollouts import sampler_session
from lockstep.samplers.base import ResponsePiece
from lockstep.samplers.torch import stateful
from lockstep.samplers.torch.continuous import ContinuousLayout
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.system.command_line import format_command

Run = Callable[..., list[dict[str, Any]]]

SOUND = 10
"""Refits before a fault begins."""
STEPS = 30
WATCHED = (
    "agreement.exact=false", "agreement.drift.baseline_steps=6", "agreement.on_breach=warn", f"run.max_steps={STEPS}",
    "run.save_every=100", "policy.lr=3e-3",
)  # fmt: skip


class Separate(TorchSampler):
    """Has weights of its own."""

    def __init__(self, lm: PreTrainedModel, *options: Any) -> None:
        super().__init__(copy.deepcopy(lm), *options)


class StaleDecoding(Separate):
    """Decodes with weights that it captured once, as a graph would that holds on to old memory;
    reads with the new.
    """

    captured: PreTrainedModel | None = None

    def _compute_logits(
        self, token_N: Tensor, position_N: Tensor, layout: ContinuousLayout, keep_M: Tensor
    ) -> Tensor:
        if self.captured is None and (self.version or 0) >= SOUND:
            self.captured = copy.deepcopy(self._lm)
        lm = self._lm if self.captured is None else self.captured
        inputs = {"input_ids": token_N[None], "position_ids": position_N[None], "use_cache": False}
        return lm(**inputs, layout=layout, logits_to_keep=keep_M).logits[0]


class Buffered(Separate):
    """Takes weights into a buffer, and attests what is in there; by a mistake not all that came is
    computed with.
    """

    def __init__(self, lm: PreTrainedModel, *options: Any) -> None:
        super().__init__(lm, *options)
        self.buffer = copy.deepcopy(self._lm)

    def _iterate_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return chain(self.buffer.named_parameters(), self.buffer.named_buffers())

    def take_over(self, names: Iterable[str]) -> None:
        held, arrived = self._lm.state_dict(), self.buffer.state_dict()
        for name in names:
            held[name].copy_(arrived[name])


class LateRefit(Buffered):
    """Computes with what came the time before: buffers are swapped too early."""

    def _copy_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        names = self.buffer.state_dict().keys()
        if (self.version_to_come or 0) > SOUND:
            self.take_over(names)
            super()._copy_weights(stream)
            return
        super()._copy_weights(stream)
        self.take_over(names)

    version_to_come: int | None = None

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Any:
        self.version_to_come = version
        return super().load_weights(stream, version)


class LostTensors(LateRefit):
    """Of the last layer nothing arrives where it is computed with, however often it is sent."""

    def take_over(self, names: Iterable[str]) -> None:
        late = (self.version_to_come or 0) > SOUND
        super().take_over(name for name in names if not (late and "mlp" in name))

    def _copy_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        Buffered._copy_weights(self, stream)
        self.take_over(self.buffer.state_dict().keys())


@pytest.fixture
def sampled_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[TorchSampler]], None]:
    return lambda sampler: monkeypatch.setattr(stateful, "torch_sampler", sampler)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [(StaleDecoding, "decode"), full(LateRefit, "refit"), full(LostTensors, "weights")],
)
def test_sampler_fault_missed_by_attestation_raises_alarm_that_names_its_kind(
    run: Run,
    sampled_by: Callable[[type[TorchSampler]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: type[TorchSampler],
    outcome: str,
) -> None:
    """Between two versions at which a weight sync scores its probe, which would end the run."""
    monkeypatch.setattr(sampler_session, "PROBE_EVERY", 10**9)
    sampled_by(fault)
    rows = [row for row in run(*WATCHED) if "watch/alarm" in row]
    first = next((row for row in rows if row["watch/alarm"]), None)
    assert first is not None, f"mismatch {[row['watch/mismatch'] for row in rows]}"
    told = [line for line in capsys.readouterr().err.splitlines() if "drifting apart" in line]
    print(
        f"{outcome}: alarm in step {first['step']}, {first['step'] - SOUND} after the first "
        f"faulty refit; {told}"
    )
    assert first["step"] > SOUND
    assert len(told) == 1
    assert f"step {first['step']}: " in told[0]
    assert f"); {outcome}: " in told[0]
    assert first["watch/e_value"] >= 100
    assert {"watch/rescored", "watch/resent", "watch/kept_then", "watch/kept_now"} <= first.keys()
    assert all(row["watch/alarm"] for row in rows if row["step"] >= first["step"])


class Off(TorchSampler):
    """Says of each token that it was less likely by a hundredth than it was."""

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        for places, batch in super().pieces(requests, sampling):
            shifted_N = batch["sampler_logprob"] - math.log(1.01) * batch.mask
            yield places, batch.with_columns({"sampler_logprob": shifted_N})


@pytest.mark.usefixtures("run")
def test_sampler_off_by_one_percent_stops_run_before_first_step_is_trained(
    sampled_by: Callable[[type[TorchSampler]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    sampled_by(Off)
    assert main(["train", "tiny.yaml"]) == 4
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        r"step 1: sampler and learner disagree, mean e\^\|Δ\| is 1.01 over \d+ tokens", told
    )
    assert "the bound is 1.001 (agreement.max_mult_prob_error)" in told
    assert (
        f"`{format_command('doctor', 'quick', 'run/initial')} backends=[hf,torch] "
        "learner.dtype=fp32`" in told
    )
    assert told.endswith("the run was saved after step 0; rerun the command to resume")
    (row,) = (row for row in read_metrics(Path("run")) if "agreement/breach" in row)
    assert (row["step"], row["agreement/breach"]) == (1, 1.0)
    assert not any("train/reward" in row for row in read_metrics(Path("run"))), (
        "it was not trained on"
    )
    assert main(["report", "run"]) == 0
    sampled_by(TorchSampler)
    assert main(["train", "tiny.yaml"]) == 0
    assert "AGREE: " in capsys.readouterr().out
    assert main(["train", "tiny.yaml", "run.folder=sound"]) == 0
    assert_same(final("run"), final("sound"))
    assert read_metrics(Path("run")) == read_metrics(Path("sound"))


@pytest.mark.full
@pytest.mark.usefixtures("run")
def test_run_with_on_breach_warn_finishes_with_disagreement_exit_code(
    sampled_by: Callable[[type[TorchSampler]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    sampled_by(Off)
    command = ["train", "tiny.yaml", "agreement.on_breach=warn"]
    assert main(command) == 4
    shown = capsys.readouterr()
    assert shown.err.count("sampler and learner disagree") == 1
    assert "DISAGREE: " in shown.out
    assert "bound 1.001, exceeded in 2 steps" in shown.out
    assert "DISAGREE: " in Path("run/final/README.md").read_text()
    assert main(command) == 4, "a finished run says so again"
    assert (
        main(["train", "tiny.yaml", "agreement.max_mult_prob_error=1.02", "run.folder=loose"]) == 0
    )


@pytest.mark.parametrize("sampler", [TorchSampler, full(Separate)])
def test_a_healthy_run_has_no_alarm(
    run: Run,
    sampled_by: Callable[[type[TorchSampler]], None],
    capsys: pytest.CaptureFixture[str],
    sampler: type[TorchSampler],
) -> None:
    sampled_by(sampler)
    rows = step_rows(run(*WATCHED))
    assert [row["watch/alarm"] for row in rows] == [0.0] * STEPS
    assert all(row["watch/e_value"] <= 1.0 for row in rows)
    assert ["watch/bound" in row for row in rows] == [step >= 6 for step in range(1, STEPS + 1)]
    assert "drifting apart" not in capsys.readouterr().err


def test_disabling_drift_watch_removes_its_metrics_and_changes_no_other(run: Run) -> None:
    usual = "agreement.exact=false"
    on = run(usual, "run.folder=on", "agreement.drift.baseline_steps=1")
    off = run(usual, "run.folder=off", "agreement.drift=null")
    assert any("watch/alarm" in row for row in on)
    assert [{name: row[name] for name in row if not name.startswith("watch/")} for row in on] == off


def test_resumed_run_restores_drift_watch_state(run: Run) -> None:
    """Stopped once before the baseline is whole, and once after it."""
    watched = (
        "agreement.exact=false",
        "agreement.drift.baseline_steps=3",
        "run.max_steps=6",
        "run.keep=9",
    )
    run(*watched, "run.folder=whole")
    for after in (2, 4):
        shutil.copytree("whole", f"after_{after}", ignore=shutil.ignore_patterns("final"))
        for path in Path(f"after_{after}/checkpoints").glob("step_*"):
            if int(path.name.removeprefix("step_")) > after:
                shutil.rmtree(path)
        run(*watched, f"run.folder=after_{after}")
        assert read_metrics(Path(f"after_{after}")) == read_metrics(Path("whole"))
        last = [
            Path(folder, "checkpoints/step_000006/manifest.json")
            for folder in ("whole", f"after_{after}")
        ]
        whole, again = (
            json.loads(path.read_text())["state"]["agreement"]["watch"] for path in last
        )
        assert again == whole
        assert len(whole["kept"]["tokens"]) == 16
        assert whole["drift"]["seen"] == 6
