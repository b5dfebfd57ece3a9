"""Writes tests/durations.txt from JUnit files: what all of them take, and the forty longest tests.

make durations
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

OUT = Path(__file__).parent.parent / "tests" / "durations.txt"
LONGEST = 40

lines, cases = [], []
for file in sys.argv[1:]:
    suite = next(ElementTree.parse(file).iter("testsuite"))
    own = [(float(case.get("time")), f"{case.get('classname')}::{case.get('name')}") for case in suite.iter("testcase")]
    cases += own
    total = sum(seconds for seconds, _ in own)
    lines.append(f"{file}: {len(own)} tests, {float(suite.get('time')) / 60:.1f} minutes, {total:.0f} s of tests")
lines += ["", *(f"{seconds:6.1f}  {name}" for seconds, name in sorted(cases, reverse=True)[:LONGEST])]
OUT.write_text("\n".join(lines) + "\n")
