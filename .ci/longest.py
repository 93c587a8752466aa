"""Prints which tests took longest, and which ran nowhere.

python3 .ci/longest.py REPORT.xml ...

The reports are pytest's, one of each TensorFlow.
"""

import collections
import os
import sys
from xml.etree import ElementTree

MOST = 25

ran, skipped = set(), {}
for path in sys.argv[1:]:
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
    name = os.path.splitext(os.path.basename(path))[0]
    minutes = sum(files.values()) / 60
    for kind, took in (("files", files), ("tests", tests)):
        print(f"== {name}: {minutes:.0f} minutes; the longest {kind}")
        for one, seconds in took.most_common(MOST):
            print(f"{seconds:6.0f} s  {one}")

nowhere = sorted(set(skipped) - ran)
print(f"== skipped wherever they were chosen: {len(nowhere)}")
for one in nowhere:
    print(f"{one}: {skipped[one]}")
