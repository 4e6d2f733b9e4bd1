"""read_checkpoint_test.py MAKE_CHECKPOINT READER: the Python reader reads what the library writes, and refuses damaged files."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

MAKE_CHECKPOINT, READER = sys.argv[1:3]


class ReadCheckpoint(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.temporary)
        made = subprocess.run([MAKE_CHECKPOINT, self.temporary], check=True, capture_output=True, text=True)
        self.folder = made.stdout.strip()

    def read(self, *options, folder=None):
        return subprocess.run([sys.executable, READER, folder or self.folder, *options], capture_output=True, text=True)

    def edit_index(self, edit):
        path = os.path.join(self.folder, "index.json")
        with open(path) as file:
            index = json.load(file)
        edit(index)
        with open(path, "w") as file:
            json.dump(index, file)

    def test_values(self):
        result = self.read("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["step"], 7)
        self.assertEqual([(l["kind"], l["inputs"], l["neurons"]) for l in report["layers"]],
                         [("input", 50, 32), ("output", 32, 5)])
        number = 0
        for layer in report["layers"]:
            for modelet in layer["modelets"]:
                weight = modelet["arrays"]["weight"]
                count = weight["shape"][0] * weight["shape"][1]
                self.assertEqual(weight["dtype"], "F32")
                self.assertAlmostEqual(weight["min"], number + 7, places=4)
                self.assertAlmostEqual(weight["mean"], number + 7 + (count - 1) / 2000, places=4)
                self.assertEqual(modelet["arrays"]["bias"]["max"], -1)
                self.assertEqual(modelet["arrays"]["clock"]["mean"], 3)
                number += 1
        self.assertEqual(number, 4)
        self.assertIn("covered exactly", self.read().stdout)

    def refuse(self, text, code=1, folder=None):
        result = self.read(folder=folder)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertIn(text, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertNotRegex(result.stderr, "Errno|Error:|Traceback")

    def test_gap(self):
        self.edit_index(lambda index: index["modelets"].pop(1))
        self.refuse("expected 16")

    def test_missing_end(self):
        self.edit_index(lambda index: index["modelets"].pop(3))
        self.refuse("not one a label")

    def test_short_file(self):
        with open(os.path.join(self.folder, "output.00000000-00000002.safetensors"), "ab") as file:
            file.truncate(100)
        self.refuse("bytes long")

    def test_no_checkpoint(self):
        self.refuse("no such folder", 2, os.path.join(self.temporary, "nowhere"))
        self.refuse("no such folder", 2, os.path.join(self.folder, "index.json"))
        # If the user names the run instead of a checkpoint, the message says what to name.
        self.refuse(self.folder, 2, self.temporary)
        os.remove(os.path.join(self.folder, "index.json"))
        self.refuse("index.json", 2)

    def test_an_index_that_is_none(self):
        path = os.path.join(self.folder, "index.json")
        self.edit_index(lambda index: index.pop("step"))
        self.refuse("'step'")
        for text in ("", "[]", "{}", "7", '{"format": "modelet-checkpoint", "version": 1, "modelets": 3}', "[" * 100000):
            with open(path, "w") as file:
                file.write(text)
            self.refuse("index.json")

    def test_no_arrays(self):
        path = os.path.join(self.folder, "output.00000000-00000002.safetensors")
        size = os.path.getsize(path)
        for header in (b"{}", b"[]", b"7", b'{"a":3}', b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}', b"\xff"):
            with open(path, "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header + bytes(size - 8 - len(header)))
            self.refuse("output.00000000-00000002.safetensors")
        os.remove(path)
        self.refuse("output.00000000-00000002.safetensors: No such file")

    def test_help(self):
        shown = self.read("--help")
        self.assertEqual(shown.returncode, 0)
        for text in ("RUN/checkpoints/step-", "Exit codes", "--json", "safetensors"):
            self.assertIn(text, shown.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
