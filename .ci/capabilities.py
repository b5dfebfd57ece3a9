"""Fails unless every required capability was proved by tests that passed, and no test that names it was skipped."""

import sys
from collections import Counter
from xml.etree import ElementTree

REQUIRED = ("assets", "browser", "gloo")

passed, missed = Counter(), Counter()
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    ran = not any(case.find(outcome) is not None for outcome in ("skipped", "failure", "error"))
    for need in (p.get("value") for p in case.iter("property") if p.get("name") == "needs"):
        (passed if ran else missed)[need] += 1
for name in REQUIRED:
    print(f"capability {name}: {passed[name]} tests passed, {missed[name]} did not run")
sys.exit(any(missed[name] or not passed[name] for name in REQUIRED))
