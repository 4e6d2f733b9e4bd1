"""Checks what documents say about the repository: links, files, names in the code, options, keys.

    check_docs.py ROOT     prints every violation as file:line: text; exit code 1 if there is any

In Markdown:
- a link to a file or a heading must lead there;
- `folder/file.h` in back-ticks must exist, seen from the document or from the repository's root;
- `Class::member`, `function()`, `snake_case`, `CamelCase` and `--option` in back-ticks must occur in the code
  (a recipe writes NAME for the part that its reader chooses);
- `section.key` of an experiment must have a row in docs/experiment.md;
- in a code block a path that begins with one of our folders must name a file, and an option of our programs must exist;
- a paragraph is one line, however long (editors and viewers wrap it), and a list begins after an empty line.
In docs/architecture.md: each library's rooms, in the order of tests/layers.
In code, comments and messages: a document that is named must exist.
"""
import bisect
import importlib.util
import os
import re
import sys
import urllib.parse

SKIPPED = {"build", "runs"}
MADE = "experiments/datasets/"  # data that scripts make there is not in the repository
CODE = (".h", ".cc", ".py", ".sh", ".fbs", ".cmake", ".toml", ".json", ".in", ".supp", ".yml", "CMakeLists.txt", "run")
# Names in back-ticks that are not ours: those of libraries, tools, file formats, the system.
FOREIGN = set("CamelCase InitializeForProcessSet MemoryMax TimeoutStopSec gloo_context.cc kName snake_case --gtest_filter --install".split())
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
CPP_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.S)


def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if (not f.startswith(".") or f == ".ci") and not (folder == root and f in SKIPPED))
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def anchor(heading):
    """The name by which a link reaches a heading, as GitHub and MkDocs make it."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def without_fences(text):
    """Empties the lines inside ``` blocks, so that line numbers stay the same."""
    return re.sub(r"^( *)```.*?^\1```", lambda match: re.sub(r"[^\n]", "", match.group()), text, flags=re.S | re.M)


def declarations(text):
    """Yields (name, text between its braces) of each class, struct, enum and namespace, and (class, member) of definitions elsewhere."""
    for match in re.finditer(r"\b(?:enum class|enum|class|struct|union|namespace)\s+(?:\w+::)*(\w+)(?=([^;(){}=]*)\{)", text):
        start, depth = match.end(2) + 1, 1
        for brace in re.finditer(r"[{}]", text[start:]):
            depth += 1 if brace.group() == "{" else -1
            if depth == 0:
                yield match.group(1), text[start:start + brace.start()]
                break
    yield from re.findall(r"\b(\w+)::~?(\w+)", text)


class Repository:
    """The files of a repository, and the words of its code."""

    def __init__(self, root):
        self.root = root
        self.paths = list(files(root))
        self.known = set(self.paths)
        for path in self.paths:
            while "/" in path:
                path = os.path.dirname(path)
                self.known.add(path)
        self.names = {os.path.basename(path) for path in self.paths}
        self.top = {path.split("/")[0] for path in self.known if "/" in path}
        self.code = {path: self.read(path) for path in self.paths
                     if path.endswith(CODE) and not path.startswith("tests/docs/")}
        self.words = {}  # word -> files
        self.members = {}  # class, enum, namespace -> words between its braces, in all files
        self.options = set()
        for path, text in self.code.items():
            if path.endswith((".h", ".cc")):
                text = CPP_COMMENT.sub(lambda match: match.group(1) or " ", text)
                for name, body in declarations(text):
                    self.members.setdefault(name, set()).update(IDENTIFIER.findall(body))
            for word in set(IDENTIFIER.findall(text)):
                self.words.setdefault(word, set()).add(path)
            self.options.update(re.findall(r"--[a-z][\w-]*", text))
        for option in self.options:  # options are also keys of configuration files
            self.words.setdefault(option[2:].replace("-", "_"), set())
        table = self.read("docs/experiment.md") if "docs/experiment.md" in self.known else ""
        self.keys = set(re.findall(r"^\| `(\w+\.\w+)` \|", table, re.M))
        self.sections = {key.split(".")[0] for key in self.keys}

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def says(self, words):
        """Whether these words are a whole string in the code."""
        return any(f'"{words}"' in text for text in self.code.values())

    def find(self, document, target):
        """The file that a path in a document names; None if there is none."""
        for folder in (os.path.dirname(document), ""):
            path = os.path.normpath(os.path.join(folder, target))
            if path in self.known or path == ".":
                return path
        return None


def check_links(repository, document, text):
    for match in re.finditer(r"(?<!\\)\]\(([^()\s]+)\)", text):
        target = urllib.parse.unquote(match.group(1))
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        goal = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
        if goal not in repository.known:
            yield match.start(), f"no file for the link to {target}"
        elif heading and goal.endswith(".md"):
            headings = re.findall(r"^#+ +(.*?)\s*$", without_fences(repository.read(goal)), re.M)
            if heading not in map(anchor, headings):
                yield match.start(), f"no heading for the link to {target}"


def check_name(repository, document, name):
    """Why a name in back-ticks is dead; None if it exists, or is not ours."""
    if name in FOREIGN or name in repository.words or "NAME" in name:
        return None
    if re.fullmatch(r"--[a-z][\w-]*", name.split("=")[0].split(" ")[0]):
        option = name.split("=")[0].split(" ")[0]
        return None if option in repository.options or option in FOREIGN else f"no option {option}"
    key = re.fullmatch(r"([a-z]+)\.([a-z]\w*)(=.*)?", name)
    if key and key.group(1) in repository.sections and key.group(2) not in ("h", "cc", "md", "toml", "mlt", "txt", "py", "sh"):
        dotted = f"{key.group(1)}.{key.group(2)}"
        return None if dotted in repository.keys or repository.says(dotted) else f"no key {dotted} in docs/experiment.md"
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", name) and ("/" in name or re.search(r"\.(h|cc|py|sh|md|fbs|cmake)$", name)):
        ours = name.split("/")[0] in repository.top or re.search(r"\.(h|cc|py|sh|md|fbs|cmake|toml|yml|svg)$", name)
        if not ours or repository.find(document, name) or "/" not in name and name in repository.names:
            return None
        return f"no file {name}"
    scoped = re.fullmatch(r"((?:~?\w+::)+)(\w+)(\(.*\))?", name)
    if scoped:
        if scoped.group(1).startswith("std::"):
            return None
        owner = IDENTIFIER.findall(scoped.group(1))[-1]
        return None if scoped.group(2) in repository.members.get(owner, ()) else f"no {name} in the code"
    called = re.fullmatch(r"([A-Za-z_]\w*)\(.*\)", name)
    word = called.group(1) if called else name
    if word in FOREIGN or word in repository.words:
        return None
    if called or re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+_?|([A-Z][a-z0-9]+){2,}|k([A-Z][a-z0-9]+)+", word):
        return f"no {word} in the code"
    return None


def check_names(repository, document, text):
    for match in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", text):
        problem = check_name(repository, document, match.group(1).strip())
        if problem:
            yield match.start(), problem


def check_code_blocks(repository, text):
    for block in re.finditer(r"^( *)```.*?^\1```|^ {4}[^\n]*$", text, re.S | re.M):
        for match in re.finditer(r"(?<![\w./~$<-])[\w.-]+/[\w./-]*\w", block.group()):
            path = match.group()
            if path.split("/")[0] in repository.top and path not in repository.known and not path.startswith(MADE):
                yield block.start() + match.start(), f"no file {path}"
        for line in re.finditer(r"^[^\n]*\b(modelet|experiments/)[^\n]*$", block.group(), re.M):
            for match in re.finditer(r"(?<![\w-])--[a-z][\w-]*", line.group()):
                if match.group() not in repository.options:
                    yield block.start() + line.start() + match.start(), f"no option {match.group()}"


def check_paragraphs(text):
    """Finds lines of prose that continue in the next line."""
    lines, start = text.split("\n"), 0
    for line, following in zip(lines, lines[1:]):
        ends = not line.strip() or re.match(r"\s*(#|\||```|<)|    ", line) and not re.match(r"\s*([-*]|\d+\.) ", line)
        begins = not following.strip() or re.match(r"\s*(#|\||```|[-*] |\d+\. |<|!\[)| {4}", following)
        if not ends and not begins:
            yield start, "a paragraph is one line: join this line and the next"
        if not ends and re.match(r"([-*]|\d+\.) ", following) and not re.match(r"\s*([-*]|\d+\.) ", line):
            yield start, "an empty line is missing before the list"
        start += len(line) + 1


def check_documents_named(repository, path, text):
    for match in re.finditer(r"(?<![\w/.*-])((?:[\w.-]+/)*[\w-]+\.md)\b", text):
        name = match.group(1)
        if not repository.find(path, name) and not ("/" not in name and name in repository.names):
            yield match.start(), f"no document {name}"
    for match in re.finditer(r"\b[A-Z]{4,}(\.md)?,? (section|\u00a7) ?\d", text):
        yield match.start(), f"no document for '{match.group()}'"


def check_rooms(repository, orders):
    """orders: library -> its folders, from the bottom to the top."""
    page = "docs/architecture.md"
    rooms = re.search(r"^## Rooms$.*?(?=^## |\Z)", repository.read(page) if page in repository.known else "", re.S | re.M)
    if not rooms:
        return
    rows = [row.rstrip("/") for row in re.findall(r"^\| `([\w/]+)` \|", rooms.group(), re.M)]
    for library, order in orders.items():
        told = [row for row in rows if row.split("/")[0] == library]
        if told != order and (told or len(order) > 1):
            yield f"{page}: the rooms of {library} are {', '.join(order)}, in this order (tests/layers); the table has {', '.join(told) or 'none'}"


def check_programs(root, paths):
    """The documents call scripts as programs. Without a first line that names the interpreter, only some shells run them."""
    for path in paths:
        file = os.path.join(root, path)
        if path.endswith((".sh", ".py")) and os.access(file, os.X_OK):
            with open(file, "rb") as script:
                if script.read(2) != b"#!":
                    yield f"{path}:1: it can be executed, but its first line names no interpreter"


def folders_in_order(root):
    path = os.path.join(root, "tests/layers/check_layers.py")
    if not os.path.exists(path):
        return {}
    spec = importlib.util.spec_from_file_location("check_layers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FOLDERS


def violations(root):
    repository = Repository(root)
    yield from check_rooms(repository, folders_in_order(root))
    yield from check_programs(root, files(root))
    for path in repository.paths:
        if path.endswith(".md"):
            whole = repository.read(path)
            text = without_fences(whole)
            found = [*check_links(repository, path, text), *check_names(repository, path, text),
                     *check_code_blocks(repository, whole), *check_paragraphs(text)]
        elif path in repository.code:
            text = repository.code[path]
            found = list(check_documents_named(repository, path, text))
        else:
            continue
        starts = [match.end() for match in re.finditer(r"\n", text)]
        for position, problem in sorted(found):
            yield f"{path}:{bisect.bisect_right(starts, position) + 1}: {problem}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = list(violations(sys.argv[1]))
    for violation in found:
        print(violation)
    if found:
        sys.exit(1)


if __name__ == "__main__":
    main()
