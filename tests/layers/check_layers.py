"""Checks rules that a compiler does not: which folder may include which, and a few house rules (CONTRIBUTING.md).

    check_layers.py ROOT     prints every violation as file:line: text; exit code 1 if there is any
"""
import os
import re
import sys

# Folder -> folders its files may include. Longest match wins; tests and experiments may include everything.
LIBRARIES = {"base", "hashing", "comm", "shard", "node_agent", "scheduler"}
ALLOWED = {
    "base": {"base"},
    "hashing": {"hashing", "base"},
    "comm": {"comm", "base"},
    "shard": {"shard", "hashing", "base"},
    "node_agent": {"node_agent", "shard", "comm", "hashing", "base"},
    "scheduler": {"scheduler", "comm", "base"},
    "scheduler/cli": LIBRARIES | {"scheduler/cli"},
}
SKIPPED = {"build", "runs"}
CPP = (".h", ".cc", ".cpp", ".hpp")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path):
    """The layer a repository path belongs to, or None (tests, experiments, system headers)."""
    for layer in ("scheduler/cli", *LIBRARIES):
        if path.startswith(layer + "/"):
            return layer
    return None


def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not (folder == root and f in SKIPPED))
        for name in sorted(names):
            full = os.path.join(folder, name)
            yield full, os.path.relpath(full, root).replace(os.sep, "/")


def without_comments(text):
    """Comments and string literals become blanks; lines stay where they are."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def check_includes(path, text):
    layer = layer_of(path)
    if layer is None:
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = layer_of(match.group(2))
        if target is None and match.group(1) == '"':
            yield number, f'"{match.group(2)}": write project headers as "folder/file.h" from the repository\'s root'
        if target is not None and target not in ALLOWED[layer]:
            yield number, f"{layer} must not include {target} ({match.group(2)})"


def check_header(path, text):
    if not path.endswith((".h", ".hpp")):
        return
    if not text.startswith(("//", "/*")):
        yield 1, "a header begins with a comment: what it is for, who owns what, which threads may call it"
    # Highway includes a "-inl.h" once per instruction set: its guard is another.
    if not re.search(r"^#pragma once$", text, re.M) and not path.endswith("-inl.h"):
        yield 1, "#pragma once is missing"
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if re.search(r"\busing\s+namespace\b(?!\s+std::\w*literals\b)", line):
            yield number, "using namespace in a header"


def check_random(text):
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if re.search(r"\bs?rand\s*\(", line):
            yield number, "rand/srand: random numbers come from base/rng.h"


def check_flags(text):
    for number, line in enumerate(text.splitlines(), 1):
        if "-march=" in line.split("#")[0] or "-mtune=" in line.split("#")[0]:
            yield number, "-march/-mtune: one binary runs on every node; kernels are chosen at run time"


def violations(root):
    for full, path in files(root):
        is_cpp = path.endswith(CPP)
        is_build = path.endswith((".cmake", "CMakeLists.txt", "CMakePresets.json"))
        if not is_cpp and not is_build:
            continue
        with open(full, encoding="utf-8") as file:
            text = file.read()
        if is_cpp:
            found = [*check_includes(path, text), *check_header(path, text), *check_random(text)]
        else:
            found = check_flags(text)
        for number, problem in found:
            yield f"{path}:{number}: {problem}"


def main():
    root = sys.argv[1]
    if not os.path.isdir(os.path.join(root, "base")):
        sys.exit(f"{root}: not the repository's root")
    found = list(violations(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
