#!/usr/bin/env python3
"""Makes the "Debian dependencies" data set from the package index that apt keeps on this machine.

A sample is a binary package: the words of its description (tf-idf) -> the packages it depends on or recommends.
Any Debian user can run it. It needs only Python's standard library and apt, and no root rights itself.
The long descriptions must be downloaded first:

    sudo apt-get -o Acquire::Languages=en update
    experiments/datasets/make_debian_deps.py --out ~/debian-deps

This writes train.txt.xz, test.txt.xz (XMC text, docs/data_format.md) and labels.txt.xz (line = label id).
"""

import argparse
import collections
import hashlib
import lzma
import math
import pathlib
import re
import subprocess
import sys

DEPENDENCY_FIELDS = ("Pre-Depends", "Depends", "Recommends")
TEST_SHARE = 0.2  # of source packages
WORD = re.compile(r"[a-z][a-z0-9+]*")


def index_files(kind, languages="en"):
    """The paths of the index files of one kind (Packages, Translations) that apt has downloaded from Debian itself."""
    command = ["apt-get", "-o", f"Acquire::Languages={languages}", "indextargets", "--format", "$(FILENAME)",
               "Origin: Debian", f"Created-By: {kind}"]
    return [path for path in run(command).splitlines() if pathlib.Path(path).exists()]


def run(command):
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as failure:
        sys.exit(f"make_debian_deps: {' '.join(command)}: {failure}")


def paragraphs(path):
    """The paragraphs of a package index as dictionaries: field -> text, continuation lines included."""
    fields, name = {}, None
    # apt-helper reads the files in whatever compression apt keeps them.
    for line in run(["/usr/lib/apt/apt-helper", "cat-file", path]).split("\n"):
        if not line:
            if fields:
                yield fields
            fields = {}
        elif line[0] in " \t":
            fields[name] += "\n" + line
        else:
            name, _, text = line.partition(":")
            fields[name] = text.strip()
    if fields:
        yield fields


def read_descriptions(languages="en"):
    """Returns Description-md5 -> all long descriptions in these languages (joined by commas)."""
    texts = {}
    for path in index_files("Translations", languages):
        for fields in paragraphs(path):
            texts.setdefault(fields.pop("Description-md5"), {}).update(
                {text: None for name, text in fields.items() if name.startswith("Description-")})
    if not texts:
        sys.exit("make_debian_deps: apt has no long descriptions yet; run: "
                 f"sudo apt-get -o Acquire::Languages={languages} update")
    return {digest: list(of_digest) for digest, of_digest in texts.items()}


def dependencies(fields):
    """The names of the packages that a package depends on or recommends. Of alternatives (a | b), the first."""
    names = set()
    for field in DEPENDENCY_FIELDS:
        for clause in fields.get(field, "").split(","):
            first = re.match(r"\s*([a-z0-9][a-z0-9.+-]*)", clause)
            if first:
                names.add(first.group(1))
    return names


def described_packages():
    """Yields (name, source package, description, fields) of each package once."""
    descriptions = read_descriptions()
    seen = set()
    for path in index_files("Packages"):
        for fields in paragraphs(path):
            name = fields["Package"]
            if name in seen:  # the same package from another suite or architecture
                continue
            seen.add(name)
            text = descriptions.get(fields.get("Description-md5"), [fields.get("Description", "")])[0]
            yield name, fields.get("Source", name).split(" ")[0], text, fields


def read_packages():
    """Returns name -> (source package, Counter of words, set of dependencies), in the order of names."""
    packages = {name: (source, collections.Counter(WORD.findall(text.lower())), dependencies(fields))
                for name, source, text, fields in described_packages()}
    return dict(sorted(packages.items()))


def is_test(source, seed):
    """Whether a source package is test data. All of its binary packages go to the same side, because their descriptions are nearly
    copies."""
    digest = hashlib.blake2b(f"{seed}:{source}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < TEST_SHARE * 2**64


def ids_of(names):
    return {name: i for i, name in enumerate(sorted(set(names)))}


def tf_idf(words, features, idf):
    """Returns [(feature id, value)]: (1 + log tf) * idf, scaled to length one."""
    values = {features[w]: (1 + math.log(n)) * idf[w] for w, n in words.items() if w in features}
    norm = math.sqrt(sum(v * v for v in values.values()))
    return [(f, v / norm) for f, v in sorted(values.items())]


def make_rows(samples, features, labels, idf):
    """The XMC lines of the samples that have a known word and a known label."""
    rows = []
    for words, wanted in samples:
        pairs = tf_idf(words, features, idf)
        known = sorted(labels[name] for name in wanted if name in labels)
        if pairs and known:
            rows.append(",".join(map(str, known)) + " " + " ".join(f"{f}:{v:.6g}" for f, v in pairs))
    return rows


def write(path, lines):
    with lzma.open(path, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the three files")
    parser.add_argument("--min-word-count", type=int, default=2, metavar="N",
                        help="leave out words in fewer training descriptions than this (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="decides which sources are test data (default: %(default)s)")
    options = parser.parse_args()

    sides = ([], [])  # train, test: (words, dependencies)
    for source, words, wanted in read_packages().values():
        sides[is_test(source, options.seed)].append((words, wanted))
    train = [(words, wanted) for words, wanted in sides[0] if wanted]

    document_count = collections.Counter(w for words, _ in train for w in words)
    features = ids_of(w for w, n in document_count.items() if n >= options.min_word_count)
    labels = ids_of(name for _, wanted in train for name in wanted)
    idf = {w: 1 + math.log((1 + len(train)) / (1 + document_count[w])) for w in features}

    options.out.mkdir(parents=True, exist_ok=True)
    for name, samples in (("train", train), ("test", sides[1])):
        rows = make_rows(samples, features, labels, idf)
        write(options.out / f"{name}.txt.xz", [f"{len(rows)} {len(features)} {len(labels)}"] + rows)
        print(f"{name}: {len(rows)} samples, {len(features)} features, {len(labels)} labels", file=sys.stderr)
    write(options.out / "labels.txt.xz", labels)


if __name__ == "__main__":
    main()
