"""A Ray that a run starts answers only those who know its token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONNECT = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1]).get_all_node_info()
except Exception as error:
    sys.exit(type(error).__name__)
"""


def find_token() -> str:
    """The token of this process, which Ray makes if there is none."""
    return (
        os.environ.get("RAY_AUTH_TOKEN")
        or (Path.home() / ".ray" / "auth_token").read_text().strip()
    )


@pytest.mark.full
@pytest.mark.usefixtures("ray")
def test_ray_rejects_clients_without_valid_token(tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    unknown = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    unknown["HOME"] = str(tmp_path)  # where another token may lie in a file
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": find_token()}
    ends = [
        subprocess.run(
            [sys.executable, "-c", CONNECT, address],
            env=unknown | known,
            stderr=subprocess.PIPE,
            text=True,
        )
        for known in ({}, token | {"RAY_AUTH_TOKEN": "0" * 64}, token)
    ]
    assert [end.stderr.splitlines()[-1:] for end in ends[:2]] == [["AuthenticationError"]] * 2
    assert ends[2].returncode == 0
