#!/usr/bin/env python3
"""Makes two sets of plain text from the package index that apt keeps on this machine.

    train.txt, test.txt   __label__SECTION and the words of a package's description, a line each: which section of Debian?
    words.txt, words-test.txt   the same without sections: a corpus for data.format = "words"

Words are lower case. All packages of a source package lie on the same side. Needs Python's standard library and apt, and no
root rights itself. The long descriptions must be there once:

    sudo apt-get -o Acquire::Languages=en update
    experiments/datasets/make_debian_text.py --out ~/debian-text
"""

import argparse
import pathlib
import re
import sys

from make_debian_deps import described_packages, is_test

WORD = re.compile(r"[a-z0-9][a-z0-9+._-]*[a-z0-9+]|[a-z0-9]")


def read_packages():
    """Name -> (source package, section, words), in the order of names."""
    packages = {name: (source, fields.get("Section", "").split("/")[-1], WORD.findall(text.lower()))
                for name, source, text, fields in described_packages()}
    return dict(sorted(packages.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the four files")
    parser.add_argument("--seed", type=int, default=1, help="decides which sources are test data (default: %(default)s)")
    options = parser.parse_args()

    lines = {"train.txt": [], "test.txt": [], "words.txt": [], "words-test.txt": []}
    for source, section, words in read_packages().values():
        if not section or not words:
            continue
        text, test = " ".join(words), is_test(source, options.seed)
        lines["test.txt" if test else "train.txt"].append(f"__label__{section} {text}")
        lines["words-test.txt" if test else "words.txt"].append(text)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, of_file in lines.items():
        (options.out / name).write_text("".join(line + "\n" for line in of_file), encoding="utf-8")
        print(f"{name}: {len(of_file)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
