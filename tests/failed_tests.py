"""Prints the tests that failed, with the end of what each printed. usage: failed_tests.py PRESET-ctest.xml...

The files are those that `ctest --output-junit` wrote into build/; one that does not exist is left out.
"""

import pathlib
import sys
from xml.etree import ElementTree

BUILD = pathlib.Path(__file__).resolve().parent.parent / "build"
LINES = 40

for file in (BUILD / name for name in sys.argv[1:]):
    if not file.exists():
        continue
    for test in ElementTree.parse(file).iter("testcase"):
        if test.get("status") == "fail":
            print(f"== failed: {file.name.removesuffix('-ctest.xml')}: {test.get('name')}, the end of what it printed:")
            print("\n".join((test.findtext("system-out") or "").splitlines()[-LINES:]))
