"""Commands under bubblewrap (`bwrap`): no network, privileges or processes; few files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom

from lockstep.helpers.sandbox.seccomp import build_filter

ALLOW = (
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu) or "
    "kernel.unprivileged_userns_clone=1 (Debian) may allow it"
)
_SYSTEM_FILES = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
# a shared map of /dev/zero would be memory outside the limits
_DEVICES = ("/dev/null", "/dev/urandom")
_NOBODY = "65534"
_USERS = range(1 << 30, 1 << 31)  # unused ids
_INSTALL = (
    "apt-get install bubblewrap libseccomp2 installs it on Debian and Ubuntu, dnf install "
    "bubblewrap on Fedora"
)


def build_prefix(readable: Mapping[str, str], tmp_mb: int, filtered: int, status: int) -> list[str]:
    """Returns the prefix for a confined command, whose working folder is /tmp.

    Args:
        readable: Files and folders that it can read in addition to the system's, by their path in
            the sandbox.
        tmp_mb: Size of /tmp, MB.
        filtered: A descriptor to read the system call filter from.
        status: A descriptor for bubblewrap's report.
    """
    command = [
        "bwrap",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    command += ["--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    command += ["--seccomp", str(filtered), "--json-status-fd", str(status)]
    command += ["--perms", "1777", "--size", str(tmp_mb << 20), "--tmpfs", "/tmp"]
    readable = dict(readable)
    for path in (*_SYSTEM_FILES, *map(os.path.realpath, _SYSTEM_FILES)):
        readable.setdefault(path, path)
    for inside, path in sorted(readable.items()):
        if not any(str(folder) in readable for folder in Path(inside).parents):
            command += [*_make_folder(os.path.dirname(inside)), "--ro-bind-try", path, inside]
    for device in _DEVICES:
        command += [*_make_folder("/dev"), "--dev-bind", device, device]
    command += ["--remount-ro", "/", "--chdir", "/tmp"]
    # the root of a container's user namespace has fewer ids
    all_ids = ["0", "0", str((1 << 32) - 1)]
    uid_map = Path("/proc/self/uid_map")
    is_root = os.geteuid() == 0 and uid_map.read_text(encoding="utf-8").split() == all_ids
    if not is_root:
        return [*command, "--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY]
    # The process limit does not apply to root, so each program runs as a separate user.
    user = str(SystemRandom().choice(_USERS))
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*command, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", *become]


def _make_folder(folder: str) -> list[str]:
    """Options that create a folder and its parents, accessible to every user."""
    folders = list(map(str, (*reversed(Path(folder).parents), Path(folder))))[1:]
    options: list[str] = []
    for path in folders:
        if path != "/tmp":
            options += ["--perms", "0755", "--dir", path]
    return options


def find_obstacle() -> str | None:
    """Returns the reason why bubblewrap does not work here; None if it works."""
    if sys.platform != "linux":
        return f"bubblewrap requires Linux, but this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return f"bubblewrap is not installed; {_INSTALL}"
    try:
        build_filter()
    except OSError:
        return f"libseccomp is not installed; {_INSTALL}"
    return None
