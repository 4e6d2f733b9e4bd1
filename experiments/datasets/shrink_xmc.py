#!/usr/bin/env python3
"""Makes an XMC data set smaller for a repository: fewer digits in values, and the strongest level of xz. Drops no sample, feature or label.

    experiments/datasets/shrink_xmc.py --digits 3 ~/debian-deps experiments/datasets/debian-deps

This reads train.txt.xz, test.txt.xz and labels.txt.xz from the first folder and writes them to the second.
"""

import argparse
import lzma
import pathlib
import re
import sys

VALUE = re.compile(r":(\S+)")


def rounded(text, digits):
    return VALUE.sub(lambda match: f":{float(match.group(1)):.{digits}g}", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=3, help="significant digits of a value (default: %(default)s)")
    parser.add_argument("source", type=pathlib.Path, help="folder to read")
    parser.add_argument("target", type=pathlib.Path, help="folder to write")
    options = parser.parse_args()
    options.target.mkdir(parents=True, exist_ok=True)
    for name in ("train.txt.xz", "test.txt.xz", "labels.txt.xz"):
        text = lzma.decompress((options.source / name).read_bytes()).decode()
        if name != "labels.txt.xz":
            text = rounded(text, options.digits)
        packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
        (options.target / name).write_bytes(packed)
        print(f"{options.target / name}: {len(packed)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
