"""`lockstep gpu-check` on a CPU: each check measures, tells what is wrong, and keeps no other from
running.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from lockstep import cli
from lockstep.cluster.specs import SamplerSpec
from lockstep.core import exit_codes
from lockstep.core.errors import BrokenPromiseError, InputError
from lockstep.plan.time import DeviceRates, EngineCounts, sampling_seconds
from lockstep_doctor.machine import checks, command
from lockstep_doctor.machine.checks import CheckFigures, list_checks
from lockstep_doctor.machine.command import check_machine, find_rates
from lockstep_doctor.machine.trial import MachineTrial, WorkloadSize

CPU = torch.device("cpu")
TINY = WorkloadSize(
    hidden=64, layers=2, vocabulary=512, rows=8, prompt=16, response=16, product=512, copied=1 << 20
)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> MachineTrial:
    return MachineTrial.create_in(tmp_path_factory.mktemp("trial"), CPU, 0, TINY)


def test_gpu_checks_return_positive_rates_or_name_missing_gpus(trial: MachineTrial) -> None:
    found = list_checks(trial)
    for name, what in (("learner over all GPUs", "two GPUs"), ("weight sync, cuda_ipc", "a GPU")):
        with pytest.raises(InputError, match=f"needs {what}"):
            found[name]()
    for name in (
        "copy",
        "products",
        "learner, bf16",
        "torch sampler, bf16",
        "weight sync, shared_memory",
    ):
        measured = found[name]()
        assert measured
        speeds = {
            key: value
            for key, value in measured.items()
            if not key.endswith(("to the bit", "nats"))
        }
        assert all(value > 0 for value in speeds.values() if isinstance(value, float))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_sampler_and_learner_logprobs_are_bitwise_equal(trial: MachineTrial, dtype: str) -> None:
    measured = list_checks(trial)[f"exact, {dtype}"]()
    assert measured["tokens compared"] == trial.scale.rows * trial.scale.response
    assert measured["not equal to the bit"] == 0


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_logprob_check_fails_if_scores_differ_from_float64(
    trial: MachineTrial, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = list_checks(trial)[f"log-probabilities, {dtype}"]
    assert {"log p", "entropy", "gradient"} == measure().keys()
    true = checks.token_scores
    monkeypatch.setattr(checks, "token_scores", lambda logits, *rest: true(logits * 1.05, *rest))
    with pytest.raises(BrokenPromiseError, match=r"differ from float64 on the host: log p"):
        measure()


def test_sampler_with_different_weights_fails_agreement_check(
    trial: MachineTrial, tmp_path: Path
) -> None:
    other = MachineTrial.create_in(tmp_path, CPU, 0, replace(trial.scale, layers=1))
    sampler = SamplerSpec(
        str(other.folder), trial.build_sampler_section(), trial.build_computation("fp32")
    ).open_in_process()
    with pytest.raises(BrokenPromiseError, match="128 of 128 tokens"):
        checks._measure_agreement(trial, sampler, trial.build_learner_spec("fp32").build(), "fp32")


def test_gpu_check_writes_all_outcomes_and_exits_with_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> CheckFigures:
        raise BrokenPromiseError("the sampler has other weights")

    def failed() -> CheckFigures:
        raise IndexError("no such stream")

    def absent() -> CheckFigures:
        raise InputError("needs two GPUs")

    listed: Mapping[str, Callable[[], CheckFigures]] = {}
    told: list[dict[str, str]] = []
    monkeypatch.setattr(command, "list_checks", lambda _: listed)
    monkeypatch.setattr(command.WorkloadSize, "for_memory", lambda _: TINY)
    states: list[tuple[Mapping[str, Callable[[], CheckFigures]], int]] = [
        ({"good": lambda: {"GB/s": 3.25}, "absent": absent}, exit_codes.OK),
        ({"fails": failed, "good": lambda: {"GB/s": 3.25}}, exit_codes.CRASH),
        ({"breaks": broken, "fails": failed}, exit_codes.BROKEN),
    ]
    for listed, code in states:
        assert check_machine("cpu", tmp_path) == code
        told = json.loads((tmp_path / "gpu_check.json").read_text())["checks"]
        assert [one["check"] for one in told] == list(listed)
    assert "IndexError: no such stream" in told[1]["note"]
    assert "in failed" in told[1]["trace"]
    assert "| breaks | broken |" in capsys.readouterr().out


def test_gpu_check_rejects_file_as_output_and_missing_gpu(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="give a folder"):
        cli.parse_arguments(["gpu-check", "--out", str(tmp_path / "file")]).command(
            cli.parse_arguments(["gpu-check", "--out", str(tmp_path / "file")])
        )
    options = cli.parse_arguments(["gpu-check", "--device", "cuda", "--out", str(tmp_path / "out")])
    with pytest.raises(InputError, match="torch sees no GPU"):
        options.command(options)


def test_device_rates_are_recovered_from_simulated_measurements(trial: MachineTrial) -> None:
    wanted = DeviceRates(products=2e12, learner=0.5, memory=3e10, layer_s=1e-3, sync=1e9, host=2e9)
    seconds = sampling_seconds(
        trial.build_plan_rank("fp32"),
        EngineCounts(1, 1, trial.scale.rows),
        trial.scale.response,
        wanted,
    )
    measured: dict[str, CheckFigures] = {
        "copy": {"from the host, GB/s": 2.0},
        "products": {
            "fp32, TFLOP/s": 2.0,
            f"fp32, weights read by {checks.FEW_ROWS} rows, GB/s": 30.0,
        },
        "learner, fp32": {"share of products": 0.5},
        "torch sampler, fp32": {"tokens/s": trial.scale.rows * trial.scale.response / seconds},
        "weight sync, shared_memory": {"sync GB/s": 1.0},
    }
    found = find_rates(trial, measured)
    assert list(found) == ["fp32"], "nothing was measured in bf16"
    assert asdict(found["fp32"]) == pytest.approx(asdict(wanted))
    within = find_rates(trial, measured | {"weight sync, cuda_ipc": {"sync GB/s": 9.0}})
    assert within["fp32"].sync == pytest.approx(9e9), "what colocated engines take"
