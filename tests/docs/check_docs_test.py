"""The checker finds violations: each rule is broken once in a small tree."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_docs

TREE = {
    "base/box.h": "// A Box. Nothing calls forgotten().\nnamespace modelet {\ntemplate <class T>\nclass Box : public Lid<T> {\n  void open();\n  int size_in_bytes;\n};\n}\n",
    "base/box.cc": '#include "base/box.h"\nvoid Box::open() { shut(); }\nenum class Kind { kRound };\nauto o = "--stop-after";\nauto t = "model.row";\n',
    "docs/experiment.md": "# Keys\n\n## The `[model]` section\n\n| key | type |\n|---|---|\n| `model.hidden` | list |\n",
}


class CheckDocs(unittest.TestCase):
    def found(self, text, path="docs/page.md"):
        with tempfile.TemporaryDirectory() as root:
            for name, content in {**TREE, path: text}.items():
                full = os.path.join(root, name)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(content)
            return list(check_docs.violations(root))

    def check(self, dead, alive):
        for text in dead:
            self.assertEqual(len(self.found(text)), 1, text)
        for text in alive:
            self.assertEqual(self.found(text), [], text)

    def test_links(self):
        self.check(["[a](other.md)", "[a](../base/none.h)", "[a](experiment.md#none)", "![a](none.svg)", "[a](#none)"],
                   ["[a](experiment.md)", "[a](../base/box.h)", "[a](experiment.md#the-model-section)", "[a](https://example.org/x.md)",
                    "# One `b` more\n\n[a](#one-b-more)", "```\n[a](none.md)\n```"])
        self.assertEqual(self.found("a\n\nb [a](other.md)"), ["docs/page.md:3: no file for the link to other.md"])

    def test_files(self):
        self.check(["`base/none.h`", "`base/box.py`", "`docs/none/`", "`none.cc`", "`../base/none.h`"],
                   ["`base/box.h`", "`base/`", "`../base/box.h`", "`box.h`", "`experiment.md`", "`other/thing`", "`index.json`"])

    def test_names(self):
        self.check(["`Box::shut`", "`Box::forgotten`", "`Lid::open`", "`forgotten()`", "`size_in_words`", "`SomeBox`", "`Kind::kSquare`", "`kSquare`"],
                   ["`Box::open`", "`Box::open()`", "`modelet::Box`", "`shut()`", "`size_in_bytes`", "`Kind::kRound`", "`std::thread`", "`word`"])

    def test_options(self):
        self.check(["`--start-after`", "`--start-after=3`", "`start_after`"], ["`--stop-after`", "`--stop-after 3`", "`stop_after`"])

    def test_keys(self):
        self.check(["`model.width`", "`model.width=3`"], ["`model.hidden`", "`model.hidden=[64]`", "`model.row`", "`other.width`"])

    def test_code_blocks(self):
        self.check(["    base/none.sh --fast", "```\nrun base/none.sh\n```", "    modelet run --start-after"],
                   ["    base/box.h", "    runs/x/y", "    /base/none.sh", "a base/none.sh", "    modelet run --stop-after", "    ls --all"])

    def test_paragraphs(self):
        self.check(["One\ntwo.", "- One\n  two.", "1. One\ntwo.", "One:\n- two", "> One\ntwo"],
                   ["One.\n\nTwo.", "- One.\n- Two.", "One:\n\n- two\n- three", "# One\nTwo.", "| a | b |\n|---|---|\n| c | d |\nText.",
                    "One:\n\n    two\n    three", "```\none\ntwo\n```", "One.\n```\ntwo\n```"])

    def test_rooms(self):
        page = "# A\n\n## Rooms\n\n| room | rule |\n|---|---|\n| `base/` | x |\n| `base/a` | x |\n\n## Next\n\n| `base/b` | x |\n"
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "docs"))
            with open(os.path.join(root, "docs/architecture.md"), "w", encoding="utf-8") as file:
                file.write(page)
            repository = check_docs.Repository(root)
            self.assertEqual(list(check_docs.check_rooms(repository, {"base": ["base", "base/a"], "hashing": ["hashing"]})), [])
            for order in (["base"], ["base/a", "base"], ["base", "base/a", "base/b"]):
                self.assertEqual(len(list(check_docs.check_rooms(repository, {"base": order}))), 1, order)

    def test_documents_named_in_code(self):
        for text in ("// See docs/none.md.\n", 'f("docs/none.md");\n', "// (DESIGN section 3.2)\n", "// none.md\n"):
            self.assertEqual(len(self.found(text, "base/other.cc")), 1, text)
        for text in ("// docs/experiment.md\n", "// experiment.md\n", 'f(folder + "*.md");\n', "// SLIDE, section\n"):
            self.assertEqual(self.found(text, "base/other.cc"), [], text)


if __name__ == "__main__":
    unittest.main()
