"""Checks rules that a compiler does not: which folder may include which, and a few house rules (CONTRIBUTING.md).

    check_layers.py ROOT     prints every violation as file:line: text; exit code 1 if there is any
"""
import os
import re
import sys

# Library -> libraries that its files may include. Tests and experiments may include everything.
ALLOWED = {
    "base": {"base"},
    "hashing": {"hashing", "base"},
    "comm": {"comm", "base"},
    "shard": {"shard", "hashing", "base"},
    "node_agent": {"node_agent", "shard", "comm", "hashing", "base"},
    "scheduler": {"scheduler", "comm", "base"},
    "python": {"python", "node_agent", "shard", "comm", "hashing", "base"},
}
LIBRARIES = set(ALLOWED)
# The folders of a library, from the bottom to the top. A folder may include those before it and none after it.
# docs/architecture.md says what each is for.
FOLDERS = {
    "base": ["base", "base/array", "base/text", "base/system", "base/parallel", "base/experiment"],
    "hashing": ["hashing"],
    "comm": ["comm/codec", "comm/wire", "comm/security", "comm/transport", "comm/messaging", "comm/collectives",
             "comm/http", "comm/content", "comm/control", "comm/content/transfer"],
    "shard": ["shard/kernels/simd", "shard/kernels", "shard/format", "shard/data/read", "shard/data/encode/features", "shard/data/encode", "shard/data/store",
              "shard/data/batch", "shard/data/pairs", "shard/modelet/checkpoint", "shard/modelet", "shard/layers/loss", "shard/layers/output", "shard/layers/scoring", "shard/layers",
              "shard/inference", "shard/synth", "shard/bench"],
    "node_agent": ["node_agent/machine", "node_agent/owner/notice", "node_agent/owner", "node_agent/step/exchange", "node_agent/step", "node_agent/replicas",
                   "node_agent/train/job", "node_agent/train/data", "node_agent/train/progress",
                   "node_agent/train/evaluation", "node_agent/train/labels", "node_agent/train/recipe", "node_agent/train",
                   "node_agent/snapshots", "node_agent/agent/core", "node_agent/agent/job", "node_agent/agent"],
    "scheduler": ["scheduler/access", "scheduler/plan", "scheduler/ledger", "scheduler/core/values",
                  "scheduler/core/run", "scheduler/core", "scheduler/dashboard", "scheduler/server",
                  "scheduler/client", "scheduler/client/launch", "scheduler/cli/options", "scheduler/cli/model", "scheduler/cli/dashboard", "scheduler/cli/report", "scheduler/cli/serve", "scheduler/cli/pool",
                  "scheduler/cli/verbs", "scheduler/cli"],
    "python": ["python/native"],
}
# Folders of the scheduler that belong to the program `modelet`, which may use every library.
PROGRAM = {"scheduler/client", "scheduler/client/launch", "scheduler/cli/options", "scheduler/cli/model", "scheduler/cli/dashboard", "scheduler/cli/report", "scheduler/cli/serve", "scheduler/cli/pool", "scheduler/cli/verbs",
           "scheduler/cli"}
SKIPPED = {"build", "runs"}
CPP = (".h", ".cc", ".cpp", ".hpp")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path):
    """The folder of a library that a path of the repository is in; None for tests, experiments and system headers."""
    library = path.split("/")[0]
    return os.path.dirname(path) if library in LIBRARIES and "/" in path else None


def problem_of(folder, target):
    """Why a file of one folder must not include a file of another; None if it may."""
    library, other = folder.split("/")[0], target.split("/")[0]
    if library != other:
        allowed = LIBRARIES if folder in PROGRAM else ALLOWED[library]
        return None if other in allowed else f"{library} must not include {other}"
    order = FOLDERS[library]
    for name in (folder, target):
        if name not in order:
            return f"{name} has no place in FOLDERS of tests/layers/check_layers.py"
    return f"{folder} must not include {target}" if order.index(target) > order.index(folder) else None


def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not (folder == root and f in SKIPPED))
        for name in sorted(names):
            full = os.path.join(folder, name)
            yield full, os.path.relpath(full, root).replace(os.sep, "/")


def without_comments(text):
    """Replaces comments and string literals by blanks, so that line numbers stay the same."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def check_includes(path, text):
    folder = folder_of(path)
    if folder is None:
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = folder_of(match.group(2))
        if target is None and match.group(1) == '"':
            yield number, f'"{match.group(2)}": write project headers as "folder/file.h" from the repository\'s root'
        problem = target and problem_of(folder, target)
        if problem:
            yield number, f"{problem} ({match.group(2)})"


def check_tests(paths):
    """Tests whose folder is not that of the code under test: tests/shard/data/read is for shard/data/read."""
    rooms, modules = set(), {}  # folders of the libraries; library and name without ending -> folders with such a file
    for path in paths:
        folder = folder_of(path)
        if folder and path.endswith(CPP):
            parts = folder.split("/")
            rooms.update("/".join(parts[:depth + 1]) for depth in range(len(parts)))
            modules.setdefault((parts[0], os.path.splitext(os.path.basename(path))[0]), set()).add(folder)
    strangers = set()
    for path in paths:
        if not path.startswith("tests/") or not path.endswith(CPP + (".py",)):
            continue
        room = folder_of(path[len("tests/"):])
        if room is None:
            continue
        if "/" in room and room not in rooms:
            strangers.add(room)
        elif path.endswith("_test.cc"):
            name = os.path.basename(path)[:-len("_test.cc")]
            homes = modules.get((room.split("/")[0], name), set())
            # Of several modules with this name, or none, only people know which one is meant.
            if len(homes) == 1 and room not in homes:
                yield f"{path}: {name} is in {min(homes)}, so its test belongs in tests/{min(homes)}: move it, or name it after what it tests"
    for room in sorted(strangers):
        yield f"tests/{room}: tests mirror the folders, and there is no folder {room}: move its files to the folder of the code that they test"


def check_header(path, text):
    if not path.endswith((".h", ".hpp")):
        return
    if not text.startswith(("//", "/*")):
        yield 1, "a header begins with a comment: what it is for, who owns what, which threads may call it"
    # Highway includes a "-inl.h" once for each instruction set, so it has another guard.
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
    paths = [path for _, path in files(root)]
    yield from check_tests(paths)
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
