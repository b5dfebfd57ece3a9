"""Commands under bubblewrap (`bwrap`): without network, rights and other processes, with a few files to be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from lockstep.helpers.sandbox.seccomp import build_filter

SYSTEM_FILES = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/urandom")  # a shared map of /dev/zero would be memory that no limit counts
_NOBODY = "65534"
_INSTALL = "apt-get install bubblewrap libseccomp2 installs it on Debian and Ubuntu, dnf install bubblewrap on Fedora"
_ALLOW = (
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu) or kernel.unprivileged_userns_clone=1 (Debian) may "
    "allow it"
)


def is_root() -> bool:
    """True if this is the system's own root, and not that of a container with a user namespace."""
    whole = ["0", "0", str((1 << 32) - 1)]
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text(encoding="utf-8").split() == whole


def wrap(
    readable: Mapping[str, str], folder: str, file_mb: int, filtered: int, variables: Mapping[str, str], *options: str
) -> list[str]:
    """Returns the beginning of a command, which the confined command follows.

    Args:
        readable: Files and folders that it may read, by the paths at which it sees them.
        folder: Its working folder, which is made if no file is there; in /tmp it may write.
        file_mb: Size of /tmp, MB.
        filtered: A descriptor from which the filter of system calls is read.
        variables: Its environment.
        options: More options of bwrap.
    """
    command = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--new-session", "--cap-drop", "ALL", "--clearenv", "--seccomp", str(filtered)]
    if not is_root():
        command += ["--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY]
    for name, value in variables.items():
        command += ["--setenv", name, value]
    command += ["--perms", "1777", "--size", str(file_mb << 20), "--tmpfs", "/tmp", *_make_folder(folder)]
    for inside, path in sorted(readable.items()):
        if any(str(folder) in readable for folder in Path(inside).parents):
            continue
        command += [*_make_folder(os.path.dirname(inside)), "--ro-bind-try", path, inside]
    for device in _DEVICES:
        command += [*_make_folder("/dev"), "--dev-bind", device, device]
    return [*command, "--remount-ro", "/", "--chdir", folder, *options]


def _make_folder(folder: str) -> list[str]:
    """Options that make a folder and those above it, so that every user may pass them."""
    folders = [str(path) for path in (*reversed(Path(folder).parents), Path(folder))][1:]
    return [word for path in folders if path != "/tmp" for word in ("--perms", "0755", "--dir", path)]


def map_to_itself(paths: Iterable[str]) -> dict[str, str]:
    """Maps paths, and what they are links to, to themselves."""
    return {form: form for path in paths for form in (path, os.path.realpath(path))}


def open_filter() -> int:
    """Opens the filter of system calls as a file in memory.

    Raises:
        OSError: libseccomp is not installed.
    """
    file = os.memfd_create("filter")
    os.write(file, build_filter())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def find_obstacle() -> str | None:
    """Says why no command can be run under bubblewrap here; None: it can."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux, and this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return f"bubblewrap is not installed; {_INSTALL}"
    try:
        file = open_filter()
    except OSError:
        return f"libseccomp is not installed; {_INSTALL}"
    with open(file, "rb"):
        command = [*wrap(map_to_itself(SYSTEM_FILES), "/tmp", 1, file, {}), "/usr/bin/true"]
        tried = subprocess.run(command, pass_fds=(file,), capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return None
    return f"{tried.stderr.strip() or f'bwrap ended with {tried.returncode}'}; {_ALLOW}"
