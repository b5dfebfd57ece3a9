"""What every process of Lockstep's finds in its environment, and that the user's word stays."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.system import process_defaults

NAMES = (
    "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "HF_HUB_OFFLINE", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_",
)  # fmt: skip


def heard(program: str, *before: str, **said: str) -> str:
    """What a process prints that starts without our variables, but for what is said."""
    env = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [*before, sys.executable, "-c", program]
    return subprocess.run(
        command, env={**env, **said}, capture_output=True, text=True, check=True
    ).stdout.strip()


THREADS = (
    "import sys, lockstep; assert 'torch' not in sys.modules; import torch; "
    "print(torch.get_num_threads())"
)


def test_torch_thread_count_is_set_from_cores_the_process_may_use() -> None:
    assert int(heard(THREADS)) == process_defaults.usual_threads()
    first = str(min(os.sched_getaffinity(0)))
    assert heard(THREADS, "taskset", "-c", first) == "1"


def test_environment_variables_set_by_user_override_process_defaults() -> None:
    assert heard(THREADS, OMP_NUM_THREADS="1") == "1"
    offline = (
        "import os; from lockstep.cli import main; main(['config']); "
        "print(os.environ['HF_HUB_OFFLINE'])"
    )
    assert heard(offline).splitlines()[-1] == "1"
    assert heard(offline, HF_HUB_OFFLINE="0").splitlines()[-1] == "0"


def test_importing_the_library_does_not_take_a_script_offline() -> None:
    assert heard("import os, lockstep; print(os.environ.get('HF_HUB_OFFLINE'))") == "None"


FAULTS = """
import resource
{before}
def step():
    kept = [b"x" * (1 << 22) for _ in range(8)]  # 4 MiB each, all left at once
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step(), step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_keep_freed_memory_avoids_page_faults_in_process_and_children() -> None:
    plain, keep = (
        FAULTS.format(before=""),
        "from lockstep.system.process_defaults import keep_freed_memory; keep_freed_memory()",
    )
    child = (
        f"{keep}; import subprocess, sys; subprocess.run([sys.executable, '-c', {plain!r}], "
        "check=True)"
    )
    assert int(heard(plain)) > 8000  # a page of 4 KiB each time
    assert int(heard(FAULTS.format(before=keep))) < 4000
    assert int(heard(child)) < 4000
    assert (
        int(
            heard(
                FAULTS.format(before=keep),
                MALLOC_TRIM_THRESHOLD_="0",
                MALLOC_MMAP_THRESHOLD_="65536",
            )
        )
        > 8000
    )


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("", 8)]
)
def test_thread_count_follows_container_cpu_quota_up_to_8(
    quota: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(process_defaults, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert process_defaults.usual_threads() == threads


@pytest.mark.parametrize(("maker", "given", "order"), [
    ("GenuineIntel", {}, "AUTO,STRICT"), ("GenuineIntel", {"MKL_CBWR": "AVX2"}, "AVX2"), ("AuthenticAMD", {}, None),
])  # fmt: skip
def test_mkl_summation_order_is_fixed_on_intel_only_unless_user_sets_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    maker: str,
    given: dict[str, str],
    order: str | None,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(process_defaults, "_PROCESSORS", tmp_path / "cpuinfo")
    monkeypatch.setattr(process_defaults.os, "environ", dict(given))
    process_defaults.fix_order_of_sums()
    assert process_defaults.os.environ.get("MKL_CBWR") == order
