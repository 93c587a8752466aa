"""Prints which files of tests took longest, from what pytest has written.

python3 .ci/longest.py REPORT.xml ...
"""

import collections
import os
import sys
from xml.etree import ElementTree

MOST = 25

for path in sys.argv[1:]:
    seconds = collections.Counter()
    for test in ElementTree.parse(path).iter("testcase"):
        seconds[test.get("classname")] += float(test.get("time"))
    name = os.path.splitext(os.path.basename(path))[0]
    minutes = sum(seconds.values()) / 60
    print(f"== {name}: {minutes:.0f} minutes; the longest files")
    for file, took in seconds.most_common(MOST):
        print(f"{took:6.0f} s  {file}")
