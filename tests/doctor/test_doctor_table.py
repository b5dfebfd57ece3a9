"""`lockstep doctor table` on real, small models: its grid, its verdicts, what it leaves behind, how
it ends.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_tables import SMALL, altered_torch, asked, found, report, scaled
from safetensors.torch import load_file
from tiny_recipe import RECIPE
from torch import Tensor

from lockstep.cli import main
from lockstep.config import DType, LearnerSection
from lockstep.config.loading import describe_recipe, load_recipe
from lockstep.core import exit_codes
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.learner import LearnerBackend
from lockstep_doctor.commands.recipe import doctor_recipe
from lockstep_doctor.table.base import USUAL, BackendConditions
from lockstep_doctor.table.options import DoctorRecipe
from lockstep_doctor.table.report import TableResult, render_markdown


@pytest.fixture(scope="module")
def passed(
    models: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """The folder of a report on two backends that agree, and the exit code."""
    out = tmp_path_factory.mktemp("doctor") / "out"
    return out, main(["doctor", "table", str(models("llama")), "--out", str(out), *SMALL])


def verdicts(what: TableResult) -> dict[str, str]:
    return {what.rows[number].cell.name: one.verdict for (number, _), one in what.judged.items()}


def test_table_passes_every_cell_for_agreeing_backends(passed: tuple[Path, int]) -> None:
    out, code = passed
    tree = report(out)
    assert (code, tree["verdict"], tree["exit_code"]) == (0, "PASS", 0)
    pairs = [pair for cell in tree["cells"] for pair in cell.get("pairs", ())]
    assert [(pair["train"], pair["infer"], pair["verdict"]) for pair in pairs] == [
        ("hf", "torch", "PASS")
    ] * 4
    assert all(1 <= pair["low"] <= pair["metric"] <= pair["high"] < 1.001 for pair in pairs)


def test_table_report_records_model_recipe_backends_and_environment(
    passed: tuple[Path, int], models: Callable[..., Path]
) -> None:
    tree = report(passed[0])
    assert tree["schema"] == "lockstep_doctor.table/2"
    assert tree["model"]["path"] == str(models("llama"))
    assert "model.safetensors" in tree["model"]["files"]
    assert re.fullmatch("[0-9a-f]{16}", tree["model"]["digest"])
    assert tree["recipe"]["grid"]["lengths"] == [12, 24, 48]
    assert tree["recipe"]["limits"]["confidence"] == 0.99
    assert tree["backends"]["hf"]["settings"]["kernel"] == "sdpa"
    assert tree["environment"]["torch"] == torch.__version__
    assert "has no tokenizer" in tree["notes"][0]


def test_saved_columns_reproduce_reported_figures(passed: tuple[Path, int]) -> None:
    """Whoever draws a plot has the numbers that the report was made of, token for token."""
    tree, tensors = report(passed[0]), load_file(passed[0] / "columns.safetensors")
    for cell in tree["cells"][:4]:
        for side, other in (("infer", "train"), ("train", "infer")):
            drawn = cell["pairs"][0]["drawn"][side]
            names = drawn["columns"]
            delta = tensors[names[side]].double() - tensors[names[other]].double()
            assert drawn["figures"]["k1"] == pytest.approx(
                float(delta.mean()), rel=1e-6, abs=1e-12
            ), "of who drew"
            assert drawn["figures"]["mean_abs"] == pytest.approx(
                float(delta.abs().mean()), rel=1e-6, abs=1e-12
            )
            floor = torch.stack([tensors[name] for name in names["floor"]]).double().square().sum(0)
            assert drawn["floor_rms"] == pytest.approx(float(floor.mean().sqrt()), rel=1e-4)
            mask, lengths = tensors[names["mask"]], tensors[names["lengths"]]
            assert int(mask.sum()) == delta.numel() == cell["length"] * len(lengths)
            assert int(lengths.sum()) == mask.numel() == tensors[names["tokens"]].numel()
            assert len(lengths) == cell["sequences"]


def test_inference_samples_are_compared_by_decoding_logprobs(passed: tuple[Path, int]) -> None:
    for cell in report(passed[0])["cells"][:4]:
        columns = {side: drawn["columns"] for side, drawn in cell["pairs"][0]["drawn"].items()}
        assert columns["infer"]["infer"].endswith(".torch.decoded")
        assert columns["infer"]["train"].endswith(".torch.shaped.hf")
        assert columns["train"]["infer"].endswith(".hf.shaped.torch")
        assert columns["train"]["train"].endswith(".hf.shaped.hf")


def test_repeated_requests_give_bitwise_equal_logprobs(passed: tuple[Path, int]) -> None:
    repeats = report(passed[0])["repeats"]
    assert [
        (repeat["backend"], repeat["times"], repeat["same_tokens"], repeat["bitwise"])
        for repeat in repeats
    ] == [
        ("hf", 2, 2, 2),
        ("torch", 2, 2, 2),
    ] * 2
    assert all(repeat["cell"].startswith("12 ") for repeat in repeats), (
        "only the shortest length is asked again"
    )


def test_table_markdown_lists_cells_verdicts_and_repeats(passed: tuple[Path, int]) -> None:
    lines = (passed[0] / "table.md").read_text().splitlines()
    assert lines[0] == "| Length | Data | Method | Batch | hf vs torch |"
    assert all(line.count("|") == 6 for line in lines[:8])
    drawn = r"1 \+ \d\.\de-\d\d"
    assert re.fullmatch(rf"\| 12 \| real \| greedy \| 8 \| {drawn} / {drawn} .* PASS \|", lines[2])
    assert lines[7] == "| 48 | real | T=0.7 top_p=0.9 | 8 | beyond context |"
    assert "- torch, repeated requests: 4 of 4 bitwise equal." in lines
    assert lines[-1] == "**PASS** of 4 of 6 rows; the others were not measured"


def test_report_folder_of_different_recipe_is_rejected(
    passed: tuple[Path, int], models: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["doctor", "table", str(models("llama")), "--out", str(passed[0])]
    assert main([*command, *SMALL, "seed=1"]) == exit_codes.INPUT
    assert "holds a report on something else" in capsys.readouterr().err


def test_exhausted_time_budget_cuts_cells_and_is_inconclusive(
    models: Callable[..., Path], in_tmp: Path
) -> None:
    assert (
        main(["doctor", "table", str(models("llama")), "grid.budget_s=1e-9", *SMALL])
        == exit_codes.INCONCLUSIVE
    )
    (folder,) = Path("doctor").iterdir()
    assert folder.name.startswith("llama-0-")
    states = [cell["state"] for cell in report(folder)["cells"]]
    assert states == ["cut by budget"] * 4 + ["beyond context"] * 2
    assert report(folder)["verdict"] == "INCONCLUSIVE"
    assert "12 real, greedy, batch 8" in report(folder)["notes"][-1]


@pytest.mark.full
def test_quick_runs_locate_only_if_table_fails(
    models: Callable[..., Path], in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "doctor",
        "quick",
        str(models("llama")),
        *SMALL,
        "grid.lengths=[12]",
        "grid.repeats=1",
    ]
    assert main([*command, "--out", "well"]) == 0
    assert not Path("well/location.json").exists()
    assert main([*command, "--out", "ill", "limits.max_mult_prob_error=1.0"]) == exit_codes.BROKEN
    assert Path("ill/location.json").is_file()
    assert "**FAIL**" in capsys.readouterr().out


def test_table_fails_backend_with_different_weights(models: Callable[..., Path]) -> None:
    folder, dumb = models("llama"), altered_torch(models("llama"), scaled)
    what = found(asked(folder), HFBackend(str(folder)), dumb)
    assert what.verdict == "FAIL"
    assert set(verdicts(what).values()) == {"FAIL"}
    assert "FAIL" in render_markdown(what)
    assert "beyond the limit" in render_markdown(what)


class Unshaped(LearnerBackend):
    """Knows only temperature 1 when it rescores, and refuses anything else."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.capabilities = frozenset(("generate",))

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        assert batch.sampling is None
        return super().score(batch, conditions)


def test_a_backend_that_rescores_at_temperature_1_only_is_compared_there(
    models: Callable[..., Path],
) -> None:
    folder = str(models("llama"))
    what = found(asked(models("llama")), HFBackend(folder), Unshaped(folder))
    drawn = {one.drawer: one for one in what.rows[1].drawn}
    assert drawn["torch"].column_names("hf", "torch") == ("shaped.hf", "decoded")
    assert drawn["hf"].column_names("hf", "torch") == ("plain.hf", "plain.torch")
    assert torch.allclose(
        drawn["hf"].tensors["plain.hf"], drawn["hf"].tensors["plain.torch"], atol=1e-3
    )
    assert not torch.allclose(
        drawn["hf"].tensors["plain.hf"], drawn["hf"].tensors["shaped.hf"], atol=1e-3
    )
    assert set(verdicts(what).values()) == {"PASS"}
    assert not any("plain" in name for name in drawn["torch"].tensors), (
        "its decoding is compared, as it was asked for"
    )


class Forgetful(LearnerBackend):
    """Scores without penalties."""

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        return super().score(
            replace(batch, sampling=batch.sampling and batch.sampling.without_penalties), conditions
        )


@pytest.mark.parametrize(("backend", "verdict"), [(LearnerBackend, "PASS"), (Forgetful, "FAIL")])
def test_table_compares_penalties_and_fails_backend_that_ignores_them(
    models: Callable[..., Path], backend: type[LearnerBackend], verdict: str
) -> None:
    folder = str(models("llama"))
    way = (
        "temperature: 0.8, min_p: 0.01, repetition_penalty: 1.3, presence_penalty: 0.2, "
        "frequency_penalty: 0.1"
    )
    recipe = asked(
        models("llama"), "grid.lengths=[12]", "grid.repeats=1", f"grid.methods=[{{{way}}}]"
    )
    what = found(recipe, HFBackend(folder), backend(folder))
    assert list(verdicts(what).values()) == [verdict]


def note(into: list[tuple[str, int]], name: str) -> Callable[[Any, Any, Mapping[str, Any]], None]:
    """Notes how many tokens a model reads in a pass."""
    return lambda _, __, given: into.append((name, given["input_ids"].numel()))


def test_hf_scores_prefix_with_sdpa_and_response_in_eager_chunks(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager attention reads what is compared, in chunks of eight tokens; its numbers are those of
    one pass.
    """
    witness = HFBackend(str(models("llama")))
    tokens = torch.arange(40) * 7 % 60
    batch = Batch(tokens, torch.tensor([40]), {"mask": torch.arange(40) >= 30})
    eager = BackendConditions(batch_size=1, kernel="eager")
    at_once, usual = witness.score(batch, eager), witness.score(batch)
    monkeypatch.setattr("lockstep_doctor.backends.hf.CHUNK", 8)
    read: list[tuple[str, int]] = []
    for conditions in (BackendConditions(kernel="eager"), BackendConditions(kernel="sdpa")):
        witness.model_for(conditions).register_forward_pre_hook(
            note(read, str(conditions.kernel)), with_kwargs=True
        )
    assert torch.allclose(witness.score(batch, eager), at_once, atol=1e-5)
    assert torch.allclose(at_once, usual, atol=1e-5)
    assert read == [("sdpa", 29), ("eager", 8), ("eager", 3)]


def test_unsupported_backend_appears_as_refused_column_with_reason(
    models: Callable[..., Path], in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        *SMALL,
        "grid.lengths=[12]",
        "grid.repeats=1",
        "backends=[hf,torch,megatron]",
        "learner.dtype=bf16",
    ]
    main(["doctor", "table", str(models("llama")), "--out", "out", *options])
    printed = capsys.readouterr().out
    assert "| hf vs torch | megatron |" in printed
    assert printed.count("| refused |") == 2, "once a row"
    assert "megatron is skipped: Megatron computes bf16 only on GPUs" in printed
    assert json.loads(Path("out/report.json").read_text())["refused"] == ["megatron"]


class Restless(LearnerBackend):
    """Draws the same, but never gives the same log-probabilities twice."""

    asked = 0

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        self.asked += 1
        return super().score(batch, conditions) + 1e-6 * self.asked * batch.mask


def test_repeats_with_different_logprobs_are_counted_in_table(models: Callable[..., Path]) -> None:
    folder = str(models("llama"))
    what = found(
        asked(models("llama"), "grid.repeats=3", "grid.lengths=[12]"),
        HFBackend(folder),
        Restless(folder),
    )
    own = [repeat for repeat in what.all_repeats if repeat.backend == "torch"]
    assert [(repeat.times, repeat.same_tokens, repeat.bitwise) for repeat in own] == [(3, 3, 1)] * 2
    # 1 and 2 millionths away from the first
    assert own[0].rms == pytest.approx((2.5e-12) ** 0.5, rel=0.2)
    assert (
        "torch, 12 real, greedy, batch 8: 1 of 3 bitwise equal, 3 of 3 with equal tokens"
        in render_markdown(what)
    )


class Wanderer(HFBackend):
    """Draws something else each time."""

    asked = 0

    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions = USUAL,
    ) -> Batch:
        self.asked += 1
        return super().generate(
            [Request(one.tokens, one.key + self.asked) for one in requests], sampling, conditions
        )


def test_repeats_with_different_tokens_are_counted(models: Callable[..., Path]) -> None:
    folder = str(models("llama"))
    what = found(
        asked(models("llama"), "grid.lengths=[12]"), Wanderer(folder), LearnerBackend(folder)
    )
    sampled = next(
        repeat for repeat in what.all_repeats if repeat.backend == "hf" and "T=0.7" in repeat.cell
    )
    assert (sampled.times, sampled.same_tokens, sampled.bitwise) == (2, 1, 1)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_noise_floor_is_rounding_of_declared_dtypes(
    models: Callable[..., Path], dtype: DType
) -> None:
    """Where one side computes in 16 bits, that side's rounding is the floor; where both do, both
    sides' is.
    """
    folder = str(models("llama"))
    recipe = asked(models("llama"), "grid.lengths=[12]", "grid.repeats=1")
    rounded_learner = LearnerBackend(folder, LearnerSection(dtype=dtype))
    one = found(recipe, HFBackend(folder), rounded_learner)
    drawn = one.rows[0].find_samples("torch")
    assert drawn is not None
    witness = HFBackend(folder)
    exact, rounded = (
        witness.score(drawn.batch, BackendConditions(dtype=asked_for))[drawn.batch.mask]
        for asked_for in ("fp32", dtype)
    )
    assert torch.allclose(drawn.tensors[f"shaped.rounding.{dtype}"], (exact - rounded).abs())
    assert float(drawn.tensors["shaped.rounding.fp32"].max()) < 1e-4
    both = found(recipe, HFBackend(folder, dtype), rounded_learner).rows[0].find_samples("torch")
    assert both is not None
    ratio = both.rounding_floor("hf", "torch") / both.tensors[f"shaped.rounding.{dtype}"].clamp(
        min=1e-9
    )
    assert torch.allclose(ratio, torch.full_like(ratio, 2**0.5), rtol=1e-3)


def dtypes(tree: Mapping[str, Any]) -> list[str]:
    return [side["settings"]["dtype"] for side in tree["backends"].values()]


def usual_limit(tree: Mapping[str, Any]) -> float:
    return tree["cells"][0]["pairs"][0]["clauses"]["infer.mult_prob_error"]["limit"]


@pytest.mark.parametrize(
    ("option", "shows", "expected"),
    [
        ("grid.data=[counting]", lambda tree: tree["cells"][0]["data"], "counting"),
        ("grid.sequences=9", lambda tree: tree["cells"][0]["sequences"], 9),
        ("grid.max_steps=2", lambda tree: tree["cells"][0]["sequences"], 8),
        ("grid.max_tokens=8", lambda tree: tree["cells"][0]["sequences"], 4),
        ("grid.all_draw_to=1", lambda tree: list(tree["cells"][0]["pairs"][0]["drawn"]), ["infer"]),
        ("grid.repeats=3", lambda tree: tree["repeats"][0]["times"], 3),
        ("grid.batch_sizes=[4]", lambda tree: tree["cells"][0]["batch_size"], 4),
        ("backends=[torch,hf]", lambda tree: tree["pairs"], [["torch", "hf"]]),
        ("learner.dtype=bf16", dtypes, ["bf16", "bf16"]),
        ("limits.max_mult_prob_error=1.5", usual_limit, 1.5),
    ],
)
def test_table_overrides_take_effect_in_report(
    option: str,
    shows: Callable[[Mapping[str, Any]], object],
    expected: object,
    assets: Path,
    in_tmp: Path,
) -> None:
    few = [
        "grid.lengths=[2]",
        "grid.methods=[{temperature: 0.0}]",
        "grid.batch_sizes=[8]",
        "grid.repeats=1",
    ]
    model = str(assets / "models/stories260K/hf")
    main(["doctor", "table", model, "--out", "out", *SMALL, *few, option])
    assert shows(report(Path("out"))) == expected


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["backends=[hf,hf]"], "backends has a duplicate"),
        (["backends=[hf]"], "backends"),
        (["data.prompts=nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_invalid_table_recipe_gives_message_without_traceback(
    overrides: list[str],
    said: str,
    models: Callable[..., Path],
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "table", str(models("llama")), *overrides]) == exit_codes.INPUT
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not Path("doctor").exists()


def test_doctor_of_run_folder_inherits_model_dtype_and_sampler(
    models: Callable[..., Path], in_tmp: Path
) -> None:
    run = Path("run")
    shutil.copytree(models("llama"), run / "final")
    Path("tiny.json").write_text(json.dumps(RECIPE))
    Path("tiny.yaml").write_text(Path("tiny.json").read_text())
    own = ["learner.dtype=bf16", "sampler=vllm", "sampler.max_batch_size=3"]
    (run / "recipe.yaml").write_text(describe_recipe(load_recipe("tiny.yaml", own)))
    loaded = doctor_recipe("run", ["seed=5", "grid.budget_s=7"], "doctor_quick", "out")
    recipe = loaded.recipe
    assert isinstance(recipe, DoctorRecipe)
    assert loaded.name == "run"
    assert recipe.model.path == str(run / "final")
    assert (recipe.learner.dtype, recipe.sampler.max_batch_size) == ("bf16", 3)
    assert recipe.backends == ("hf", "torch", "vllm"), (
        "the sampler that the run trained with is examined"
    )
    assert (recipe.seed, recipe.run.folder, recipe.grid.budget_s, recipe.grid.lengths) == (
        5,
        "out",
        7.0,
        (100,),
    )
