#!/usr/bin/env python3
"""Makes two sets of plain text from the package index that apt keeps on this machine.

    train.txt, test.txt   a line for each package: __label__SECTION and the words of its description. Which section of Debian is it?
    words.txt, words-test.txt   the same without sections: a corpus for data.format = "words"

Words are in lower case. All packages of a source package are on the same side. Needs Python's standard library and apt, and no
root rights itself. The long descriptions must be downloaded first:

    sudo apt-get -o Acquire::Languages=en update
    experiments/datasets/make_debian_text.py --out ~/debian-text

With --translations the corpus also has the descriptions in other languages, a line each, so it has more words than any one language.

    sudo apt-get -o Acquire::Languages=en,da,de,fr,it,sk update
    experiments/datasets/make_debian_text.py --translations da,de,fr,it,sk --out ~/debian-translations
"""

import argparse
import pathlib
import re
import sys

from make_debian_deps import described_packages, is_test, read_descriptions

WORDS_TEST_STEP = 20  # only one in so many test packages: scoring a whole vocabulary takes longer than learning from a word
WORD = re.compile(r"[^\W_](?:[\w+.-]*(?:[^\W_]|\+))?")


def words_of(text):
    return " ".join(WORD.findall(text.lower()))


def read_packages(languages):
    """Returns name -> (source package, section, words, words of its translations), in the order of names."""
    translations = read_descriptions(languages) if languages else {}
    packages = {name: (source, fields.get("Section", "").split("/")[-1], words_of(text),
                       [words_of(other) for other in translations.get(fields.get("Description-md5"), [])])
                for name, source, text, fields in described_packages()}
    return dict(sorted(packages.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the four files")
    parser.add_argument("--seed", type=int, default=1, help="decides which sources are test data (default: %(default)s)")
    parser.add_argument("--translations", default="", help="languages beside English for the corpus, joined by commas")
    options = parser.parse_args()

    lines = {"train.txt": [], "test.txt": [], "words.txt": [], "words-test.txt": []}
    for source, section, words, translations in read_packages(options.translations).values():
        if not section or not words:
            continue
        test = is_test(source, options.seed)
        lines["test.txt" if test else "train.txt"].append(f"__label__{section} {words}")
        if not test:
            lines["words.txt"] += [words, *translations]
        elif len(lines["test.txt"]) % WORDS_TEST_STEP == 0:
            lines["words-test.txt"] += [words, *translations]
    options.out.mkdir(parents=True, exist_ok=True)
    for name, of_file in lines.items():
        (options.out / name).write_text("".join(line + "\n" for line in of_file), encoding="utf-8")
        print(f"{name}: {len(of_file)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
