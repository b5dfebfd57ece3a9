#!/usr/bin/env bash
# Downloads the wheels that a GPU machine with torch and transformers alone lacks, for `scripts/gpu_bare.sh`.
#
#     scripts/gpu_wheels.sh WHEELS [PYTHON_VERSION]
#
# WHEELS: the folder to fill. PYTHON_VERSION: that machine's (default: 3.12; Linux on x86-64).
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: scripts/gpu_wheels.sh WHEELS [PYTHON_VERSION]" >&2; exit 2; }
"${PYTHON:-python3}" -m pip download --quiet --dest "$1" --only-binary=:all: \
  --python-version "${2:-3.12}" --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform any \
  'pydantic>=2.11' orjson PyYAML rich math-verify pytest pytest-timeout hypothesis
