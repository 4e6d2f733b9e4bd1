"""read_checkpoint_test.py MAKE_CHECKPOINT READER: what the library writes, the Python reader understands; what is damaged, it refuses."""
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

    def read(self, *options):
        return subprocess.run([sys.executable, READER, self.folder, *options], capture_output=True, text=True)

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

    def refuse(self, text):
        result = self.read()
        self.assertEqual(result.returncode, 1)
        self.assertIn(text, result.stderr)

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

    def test_no_index(self):
        os.remove(os.path.join(self.folder, "index.json"))
        self.refuse("index.json")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
