"""Prints which tests took longest, from what pytest has written.

python3 .ci/longest.py REPORT.xml ...
"""

import collections
import os
import sys
from xml.etree import ElementTree

MOST = 25

for path in sys.argv[1:]:
    files, tests = collections.Counter(), collections.Counter()
    for test in ElementTree.parse(path).iter("testcase"):
        seconds = float(test.get("time"))
        files[test.get("classname")] += seconds
        tests[f"{test.get('classname')}::{test.get('name')}"] += seconds
    name = os.path.splitext(os.path.basename(path))[0]
    minutes = sum(files.values()) / 60
    for kind, took in (("files", files), ("tests", tests)):
        print(f"== {name}: {minutes:.0f} minutes; the longest {kind}")
        for one, seconds in took.most_common(MOST):
            print(f"{seconds:6.0f} s  {one}")
