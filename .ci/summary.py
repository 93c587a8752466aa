"""Prints which tests took longest, which ran nowhere, and which failed.

python3 .ci/summary.py REPORT.xml ...

The reports are pytest's, one of each TensorFlow. Failures come last, where a
log that keeps only its end still has them.
"""

import collections
import os
import sys
from xml.etree import ElementTree

MOST = 25
LAST_LINES = 30

ran, skipped, failed = set(), {}, []
for path in sys.argv[1:]:
    name = os.path.splitext(os.path.basename(path))[0]
    files, tests = collections.Counter(), collections.Counter()
    for test in ElementTree.parse(path).iter("testcase"):
        seconds = float(test.get("time"))
        files[test.get("classname")] += seconds
        full = f"{test.get('classname')}::{test.get('name')}"
        tests[full] += seconds
        why = test.find("skipped")
        if why is None:
            ran.add(full)
        # A module that is skipped as a whole has no class; it ran elsewhere.
        elif test.get("classname"):
            skipped[full] = why.get("message")
        for kind in ("failure", "error"):
            for found in test.findall(kind):
                failed.append((name, full, found.text or found.get("message")))
    minutes = sum(files.values()) / 60
    for kind, took in (("files", files), ("tests", tests)):
        print(f"== {name}: {minutes:.0f} minutes; the longest {kind}")
        for one, seconds in took.most_common(MOST):
            print(f"{seconds:6.0f} s  {one}")

nowhere = sorted(set(skipped) - ran)
print(f"== skipped wherever they were chosen: {len(nowhere)}")
for one in nowhere:
    print(f"{one}: {skipped[one]}")

print(f"== failed: {len(failed)}")
for name, full, trace in failed:
    last = "\n".join((trace or "").splitlines()[-LAST_LINES:])
    print(f"== {name}: {full}\n{last}")
