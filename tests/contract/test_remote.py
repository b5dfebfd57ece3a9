"""The proxy: calls, streams, errors, deadlines and death, over its first transport."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from remote_workers import Abacus, build_nothing

from lockstep.cluster.placement import ProcessPlace
from lockstep.cluster.transport import CallFailure, CallResult, decode_message, encode_message
from lockstep.cluster.worker_proxy import (
    RemoteError,
    WorkerDied,
    WorkerProxy,
    wait_for_calls,
)
from lockstep.cluster.workers import HERE, WorkerPool, open_worker_pool
from lockstep.config import ClusterSection, Computation
from lockstep.core.batch import Batch
from lockstep.core.borders import NotFiniteError
from lockstep.core.errors import InputError, RunError
from lockstep.report.progress import show_progress

TENSORS = {
    "fp32": torch.randn(3, 4),
    "transposed": torch.randn(3, 4).T,
    "bf16": torch.randn(5).bfloat16(),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.zeros(0, 3),
    "a slice": torch.arange(1_000_000)[5:8],
}


PLACE = ProcessPlace(0, (0,), 0, on_gpu=False)
KILLED = "(killed by SIGKILL|Ray says: The actor died unexpectedly.*)"


@contextmanager
def open_workers(backend: Literal["local", "ray"]) -> Iterator[WorkerPool]:
    section, computation = ClusterSection(backend=backend), Computation(device="cpu")
    with (
        show_progress("tests") as shown,
        open_worker_pool(section, computation, shown, ranks=2) as workers,
    ):
        yield workers


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    """Child processes."""
    with open_workers("local") as workers:
        yield workers


def abacus(
    workers: WorkerPool, start: int = 0, name: str = "abacus", timeout_s: float = 400.0
) -> WorkerProxy:
    remote = workers.start_worker(partial(Abacus, start), name, timeout_s, PLACE)
    workers.callback(remote.close)
    return remote


@pytest.fixture(scope="module")
def shared(workers: WorkerPool) -> WorkerProxy:
    return abacus(workers)


@pytest.fixture
def own(workers: WorkerPool) -> WorkerProxy:
    """A worker that a test may ruin."""
    own = abacus(workers, start=10)
    own.wait_until_ready()
    return own


def gone(pid: int, within_s: float) -> bool:
    """Whether a process ends in time; one that only waits for its parent to take note has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("name", TENSORS)
def test_encoded_tensor_decodes_unchanged_and_sends_only_its_elements(name: str) -> None:
    tensor = TENSORS[name]
    parts = encode_message(CallResult({"tensor": tensor}))
    assert sum(part.nbytes for part in parts[1:]) == tensor.numel() * tensor.element_size()
    crossed = decode_message([bytearray(part) for part in parts])
    assert isinstance(crossed, CallResult)
    assert crossed.value["tensor"].dtype == tensor.dtype
    assert torch.equal(crossed.value["tensor"], tensor)


def test_worker_object_keeps_state_between_calls(shared: WorkerProxy) -> None:
    total = shared.call("add", 2)
    assert shared.call("add", 3) == total + 3
    assert shared.call("echo", "x", twice=True) == ("x", "x")


def test_workers_run_calls_concurrently(
    shared: WorkerProxy, own: WorkerProxy, tmp_path: Path
) -> None:
    """Each waits for the other to have begun."""
    shared.wait_until_ready()
    seen = [str(tmp_path / name) for name in ("one", "other")]
    pending = [
        worker.submit("meet", *names) for worker, names in ((shared, seen), (own, seen[::-1]))
    ]
    assert wait_for_calls(pending) == ["met", "met"]


def test_second_call_to_busy_worker_is_refused(shared: WorkerProxy) -> None:
    pending = shared.submit("sleep", 0.2)
    assert not pending.is_done()
    with pytest.raises(RuntimeError, match="worker abacus received add while sleep is running"):
        shared.submit("add", 1)
    assert pending.result() == "rested"


def test_worker_input_error_keeps_its_type_and_message(shared: WorkerProxy) -> None:
    with pytest.raises(InputError, match=r"policy\.lr is -1") as caught:
        shared.call("refuse")
    assert str(caught.value) == "policy.lr is -1, but must be positive"
    assert "raised in refuse of worker abacus" in caught.value.__notes__[0]
    assert shared.call("echo", 1) == 1
    batch = Batch(torch.tensor([1]), torch.tensor([1]))
    assert (
        CallFailure.from_error(NotFiniteError("the loss is not finite", batch)).family is RunError
    )


def test_remote_error_contains_worker_traceback(shared: WorkerProxy) -> None:
    with pytest.raises(
        RemoteError, match="fail of worker abacus raised LookupError: no such thing"
    ) as caught:
        shared.call("fail")
    assert 'remote_workers.py", line' in str(caught.value)
    assert shared.call("echo", 1) == 1


def test_worker_stream_yields_items_in_order_and_can_be_closed_early(shared: WorkerProxy) -> None:
    pieces = shared.stream("pieces", 1000, 100_000)
    assert next(pieces)[0] == 0
    pieces.close()
    pieces = list(shared.stream("pieces", 3, 2))
    assert [piece.tolist() for piece in pieces] == [[0, 0], [1, 1], [2, 2]]


def test_worker_stream_does_not_run_far_ahead_of_its_reader(
    shared: WorkerProxy, tmp_path: Path
) -> None:
    with closing(shared.stream("pieces", 50, 1_000_000, progress=tmp_path / "made")) as pieces:
        next(pieces)
        time.sleep(0.3)
        assert (tmp_path / "made").stat().st_size <= 5


def test_error_inside_worker_stream_raises_remote_error(shared: WorkerProxy) -> None:
    pieces = shared.stream("broken_pieces")
    assert next(pieces) == 1
    with pytest.raises(RemoteError, match="the second piece is missing"):
        next(pieces)
    assert shared.call("echo", 1) == 1


def test_worker_build_error_is_raised_by_ready(workers: WorkerPool) -> None:
    remote = workers.start_worker(build_nothing, "broken", 120.0, PLACE)
    with pytest.raises(ValueError, match="the model folder is empty"):
        remote.wait_until_ready()
    with pytest.raises(WorkerDied, match="worker broken died"):
        remote.call("add", 1)
    remote.close()


def test_worker_call_past_timeout_is_killed_and_raises_worker_died(workers: WorkerPool) -> None:
    hasty = abacus(workers, name="hasty")
    hasty.wait_until_ready()
    hasty.timeout_s = 0.5
    pid = hasty.call("pid")
    with pytest.raises(
        WorkerDied, match=r"worker hasty took longer than 0\.5 s for sleep and was ended"
    ):
        hasty.call("sleep", 60.0)
    assert gone(pid, 50.0), "before it has slept enough"
    with pytest.raises(WorkerDied, match="worker hasty died before add: this process ended it"):
        hasty.call("add", 1)


def test_worker_that_cannot_receive_before_timeout_raises_worker_died(own: WorkerProxy) -> None:
    own.timeout_s = 0.5
    os.kill(own.call("pid"), signal.SIGSTOP)
    with pytest.raises(WorkerDied, match=r"for echo and was ended"):
        own.call("echo", torch.zeros(10_000_000))


@pytest.mark.parametrize(
    ("verb", "argument", "ending"),
    [("end", signal.SIGKILL, KILLED), ("leave", 3, "(exit code 3|Ray says: .*)")],
)
def test_worker_died_error_names_worker_verb_and_exit_cause(
    own: WorkerProxy, verb: str, argument: int, ending: str
) -> None:
    total = own.call("add", 5)
    assert total >= 15
    with pytest.raises(WorkerDied, match=f"^worker abacus died in {verb}: {ending}$"):
        own.call(verb, argument)
    assert not own.is_alive()
    with pytest.raises(WorkerDied, match=f"^worker abacus died before add: {ending}$"):
        own.call("add", 1)


def test_one_failed_worker_ends_others_after_grace_period(
    shared: WorkerProxy, own: WorkerProxy
) -> None:
    shared.wait_until_ready()
    with pytest.raises(RemoteError, match="no such thing"):
        wait_for_calls([own.submit("sleep", 60.0), shared.submit("fail")], grace_s=0.2)
    assert not own.is_alive()  # it was killed in its sleep, without waiting
    assert shared.call("echo", 1) == 1


def test_worker_death_is_reported_before_errors_of_other_workers(
    shared: WorkerProxy, own: WorkerProxy
) -> None:
    failing = shared.submit("fail")
    assert failing.is_done(wait_s=5.0)
    with pytest.raises(WorkerDied, match=KILLED):
        wait_for_calls([failing, own.submit("end", signal.SIGKILL)])


@pytest.mark.full
def test_ray_worker_behaves_like_local_worker_process(ray: None) -> None:
    """Calls, refusals, errors, streams, a death and a deadline, over the other transport."""
    with open_workers("ray") as workers:
        own = abacus(workers, start=10)
        assert own.call("echo", "x", twice=True) == ("x", "x")
        assert own.call("add", 2) == 12
        with pytest.raises(InputError, match=r"policy\.lr is -1"):
            own.call("refuse")
        with pytest.raises(
            RemoteError, match="fail of worker abacus raised LookupError: no such thing"
        ):
            own.call("fail")
        assert [piece.tolist() for piece in own.stream("pieces", 2, 2)] == [[0, 0], [1, 1]]
        pieces = own.stream("broken_pieces")
        assert next(pieces) == 1
        with pytest.raises(RemoteError, match="the second piece is missing"):
            next(pieces)
        pid = own.call("pid")
        pending = own.submit("sleep", 60.0)
        with pytest.raises(RuntimeError, match="received add while sleep is running"):
            own.submit("add", 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match=KILLED):
            pending.result()
        own = abacus(workers)
        own.wait_until_ready()
        own.timeout_s = 0.5
        with pytest.raises(WorkerDied, match=r"took longer than 0\.5 s for sleep and was ended"):
            own.call("sleep", 60.0)
        assert not own.is_alive()


def test_worker_torch_threads_match_requested_thread_count(own: WorkerProxy) -> None:
    assert own.call("threads") == torch.get_num_threads()
    one = HERE.start_worker(Abacus, "abacus", 400.0, PLACE, threads=3)
    assert one.call("threads") == 3
    one.close()


SCRIPT = """
from lockstep.cluster.placement import ProcessPlace
from lockstep.cluster.workers import HERE
from remote_workers import Abacus
if __name__ == "__main__":
    remote = HERE.start_worker(Abacus, "orphan", 400.0, ProcessPlace(0, (0,), 0, on_gpu=False))
    print(remote.call("pid"), flush=True)
    remote.call("sleep", 60.0)
"""


@pytest.mark.full
def test_a_busy_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **paths},
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid, 5.0)


@pytest.mark.full
def test_script_without_main_guard_fails_with_worker_died_in_build(tmp_path: Path) -> None:
    script = SCRIPT.replace('if __name__ == "__main__":', "if True:").replace(
        '"orphan"', '"unguarded"'
    )
    (tmp_path / "script.py").write_text(script)
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **paths},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith('put its code under if __name__ == "__main__":')
