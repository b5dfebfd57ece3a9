"""Fails unless every file of tests was run, and every required capability proved by tests of which
none was skipped.

    python .ci/capabilities.py build/tests.xml build/tests_kernels.xml build/tests_kernels_exact.xml

A file may be run by any tier, so that one whose every test is `full` is not missed.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

REQUIRED = (
    "assets",
    "browser",
    "bubblewrap",
    "gloo",
    "megatron",
    "namespaces",
    "ray",
    "triton",
    "vllm",
)
TESTS = Path(__file__).parent.parent / "tests"

passed, missed, seen = Counter(), Counter(), set()
for case in (case for file in sys.argv[1:] for case in ElementTree.parse(file).iter("testcase")):
    seen.add(case.get("classname"))
    ran = not any(case.find(outcome) is not None for outcome in ("skipped", "failure", "error"))
    for need in (p.get("value") for p in case.iter("property") if p.get("name") == "needs"):
        (passed if ran else missed)[need] += 1
for name in REQUIRED:
    print(f"capability {name}: {passed[name]} tests passed, {missed[name]} did not run")
files = {
    ".".join(file.relative_to(TESTS.parent).with_suffix("").parts): file
    for file in TESTS.rglob("test_*.py")
}
unseen = sorted(str(files[name]) for name in files.keys() - seen)
for file in unseen:
    print(f"no test of {file} was run")
sys.exit(bool(unseen) or any(missed[name] or not passed[name] for name in REQUIRED))
