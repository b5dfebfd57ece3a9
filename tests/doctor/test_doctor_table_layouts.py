"""`lockstep doctor table` on several backends, layouts and ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from doctor_tables import SMALL, report

from lockstep.cli import main
from lockstep.core import exit_codes


@pytest.mark.proof
@pytest.mark.usefixtures("vllm")
def test_hf_torch_and_vllm_agree_in_all_three_pairs(assets: Path, in_tmp: Path) -> None:
    """vLLM rescores at temperature 1 only, so what others drew under top-p is compared there."""
    few = [
        "grid.lengths=[24]",
        "grid.methods=[{temperature: 0.7, top_p: 0.9}]",
        "limits.max_outlier_rate=0.02",
    ]
    model = str(assets / "models/stories260K/hf")
    assert (
        main(["doctor", "table", model, "--out", "out", *SMALL, *few, "backends=[hf,torch,vllm]"])
        == 0
    )
    tree = report(Path("out"))
    pairs = {(pair["train"], pair["infer"]): pair for pair in tree["cells"][0]["pairs"]}
    assert {names: pair["verdict"] for names, pair in pairs.items()} == dict.fromkeys(
        [("hf", "torch"), ("hf", "vllm"), ("torch", "vllm")], "PASS"
    )
    kinds = {
        names: (pair["drawn"]["infer"]["kind"], pair["drawn"]["train"]["kind"])
        for names, pair in pairs.items()
    }
    assert kinds["hf", "torch"] == ("shaped", "shaped")
    assert kinds["hf", "vllm"] == ("shaped", "plain")
    assert [repeat["bitwise"] for repeat in tree["repeats"]] == [2, 2, 2]


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_parallel_learner_layouts_agree_with_single_process(
    models: Callable[..., Path], in_tmp: Path
) -> None:
    """A learner over ranks only scores; what it scores, the others draw."""
    few = [
        "grid.lengths=[24]",
        "grid.methods=[{temperature: 0.7, top_p: 0.9}]",
        "backends=[torch,torch-tp2,torch-dp2cp2,megatron-tp2,megatron-pp2]",
    ]
    assert main(["doctor", "table", str(models("qwen3")), "--out", "out", *SMALL, *few]) == 0
    pairs = report(Path("out"))["cells"][0]["pairs"]
    assert {(pair["train"], pair["infer"]): pair["verdict"] for pair in pairs} == dict.fromkeys(
        [(name, "torch") for name in ("torch-tp2", "torch-dp2cp2", "megatron-tp2", "megatron-pp2")],
        "PASS",
    )


@pytest.mark.proof
@pytest.mark.usefixtures("vllm")
def test_two_ranks_of_vllm_agree_with_the_learner(assets: Path, in_tmp: Path) -> None:
    few = ["grid.lengths=[24]", "grid.methods=[{temperature: 1.0}]", "backends=[torch,vllm-tp2]"]
    assert (
        main(
            ["doctor", "table", str(assets / "models/stories260K/hf"), "--out", "out", *SMALL, *few]
        )
        == 0
    )


@pytest.mark.parametrize(
    ("backends", "said"),
    [
        ("[torch,torch-ep2]", "backends"),
        ("[torch,torch-tp2tp2]", "torch-tp2tp2 gives one size twice"),
        ("[torch,torch-tp3]", "num_attention_heads"),
        ("[torch-tp2,torch-dp2]", "none of torch-tp2, torch-dp2 generates"),
    ],
)
def test_invalid_backend_layouts_are_rejected_with_reason(
    models: Callable[..., Path],
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
    backends: str,
    said: str,
) -> None:
    assert (
        main(
            [
                "doctor",
                "table",
                str(models("qwen3")),
                "--out",
                "out",
                *SMALL,
                f"backends={backends}",
            ]
        )
        == exit_codes.INPUT
    )
    assert said in capsys.readouterr().err
