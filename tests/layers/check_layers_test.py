"""The checker finds violations: each rule is broken once in a small tree."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_layers

HEADER = "// Purpose.\n#pragma once\n"


class CheckLayers(unittest.TestCase):
    def found(self, path, text):
        with tempfile.TemporaryDirectory() as root:
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full))
            with open(full, "w") as file:
                file.write(text)
            return list(check_layers.violations(root))

    def test_libraries(self):
        for path, include in [("base/x.cc", "hashing/index.h"), ("hashing/x.cc", "comm/codec/codec.h"),
                              ("comm/wire/x.cc", "hashing/index.h"), ("comm/wire/x.cc", "scheduler/plan/traffic.h"),
                              ("shard/data/read/x.cc", "comm/codec/codec.h"), ("scheduler/core/x.cc", "shard/modelet/modelet.h"),
                              ("scheduler/server/main.cc", "scheduler/cli/verbs/train.h"),
                              ("node_agent/agent/main.cc", "scheduler/plan/placement.h"),
                              ("comm/control/x.cc", "node_agent/train/trainer.h")]:
            for text in (f'#include "{include}"\n', f"  #  include <{include}>\n"):
                self.assertEqual(len(self.found(path, text)), 1, (path, text))
        self.assertEqual(self.found("comm/wire/x.cc", '\n#include "shard/modelet/modelet.h"\n'),
                         ["comm/wire/x.cc:2: comm must not include shard (shard/modelet/modelet.h)"])

    def test_folders_of_a_library(self):
        for path, include in [("base/array/x.h", "base/experiment/partition.h"), ("shard/kernels/x.cc", "shard/modelet/modelet.h"),
                              ("shard/data/read/x.cc", "shard/data/store/dataset.h"), ("comm/security/x.cc", "comm/control/control.h"),
                              ("node_agent/step/x.cc", "node_agent/train/trainer.h"), ("base/x.cc", "base/system/log.h")]:
            found = self.found(path, (HEADER if path.endswith(".h") else "") + f'#include "{include}"\n')
            self.assertEqual(len(found), 1, (path, found))
            self.assertIn(f"{os.path.dirname(path)} must not include {os.path.dirname(include)}", found[0])
        self.assertIn("comm/new has no place in FOLDERS", self.found("comm/new/x.cc", '#include "comm/wire/tag.h"\n')[0])

    def test_every_order_names_folders_of_its_library_once(self):
        for library, order in check_layers.FOLDERS.items():
            self.assertEqual(len(order), len(set(order)))
            for folder in order:
                self.assertEqual(folder.split("/")[0], library)
        self.assertEqual(set(check_layers.FOLDERS), check_layers.LIBRARIES)

    def test_allowed(self):
        for path, include in [("shard/layers/x.cc", "hashing/index.h"), ("node_agent/step/x.cc", "comm/codec/codec.h"),
                              ("node_agent/train/x.cc", "shard/data/batch/batch.h"), ("scheduler/plan/x.cc", "comm/codec/codec.h"),
                              ("scheduler/cli/verbs/x.cc", "node_agent/train/trainer.h"), ("tests/comm/x.cc", "shard/modelet/modelet.h"),
                              ("comm/wire/x.cc", "base/error.h"), ("shard/modelet/x.cc", "shard/kernels/kernels.h")]:
            self.assertEqual(self.found(path, f'#include "{include}"\n'), [], (path, include))

    def test_tests_mirror_the_folders(self):
        code = ["shard/synth/synth.h", "shard/data/read/csv.cc", "shard/layers/loss/loss.h", "shard/modelet/modelet.h",
                "scheduler/core/run/pool.h", "scheduler/cli/pool/pool.h", "comm/codec/codec.h"]

        def found(*tests):
            return list(check_layers.check_tests(code + list(tests)))
        for test in ("tests/shard/data/read/csv_test.cc", "tests/shard/data/mutated_text_test.cc", "tests/shard/data_testing.h",
                     "tests/scheduler/pool_test.cc",  # two folders have a pool
                     "tests/shard/codec_test.cc",  # that of comm is another library's
                     "tests/fuzz/seeds/x.cc", "tests/error_of.h"):
            self.assertEqual(found(test), [], test)
        self.assertEqual(found("tests/shard/serve/a_test.cc", "tests/shard/serve/b_test.cc"),
                         ["tests/shard/serve: tests mirror the folders, and there is no folder shard/serve: move its files to the folder of the "
                          "code that they test"])
        self.assertEqual(len(found("tests/shard/modelet/old/read_test.py", "tests/shard/csv/csv_test.cc")), 2)
        self.assertEqual(found("tests/shard/data/csv_test.cc"),
                         ["tests/shard/data/csv_test.cc: csv is in shard/data/read, so its test belongs in tests/shard/data/read: move it, or "
                          "name it after what it tests"])
        self.assertEqual(len(self.found("tests/comm/wires/x.cc", "")), 1, "check_tests() is called")

    def test_relative_include(self):
        self.assertEqual(len(self.found("comm/x.cc", '#include "codec.h"\n')), 1)
        self.assertEqual(self.found("comm/x.cc", "#include <zmq.h>\n"), [])

    def test_headers(self):
        self.assertEqual(self.found("base/x.h", HEADER), [])
        self.assertEqual(len(self.found("base/x.h", "#pragma once\n// Purpose.\n")), 1)
        self.assertEqual(len(self.found("base/x.h", "// Purpose.\n")), 1)
        self.assertEqual(self.found("base/x.h", HEADER + "using namespace std;\n"),
                         ["base/x.h:3: using namespace in a header"])
        self.assertEqual(self.found("base/x.h", HEADER + "using namespace std::chrono_literals;\n"), [])
        self.assertEqual(self.found("base/x.h", HEADER + "// using namespace std is bad\n"), [])

    def test_random(self):
        for call in ("srand(1);", "int x = rand();", "std::rand ( );"):
            self.assertEqual(len(self.found("shard/x.cc", call + "\n")), 1, call)
        for text in ('f("rand()");', "// rand()", "grand(1);", "/* srand(\n1) */", "random_rows(3);"):
            self.assertEqual(self.found("shard/x.cc", text + "\n"), [], text)

    def test_flags(self):
        for path in ("CMake/x.cmake", "base/CMakeLists.txt", "x/CMakePresets.json"):
            self.assertEqual(len(self.found(path, 'set(F "-O3 -march=native")\n')), 1, path)
        self.assertEqual(self.found("base/CMakeLists.txt", "# no -march=native\n"), [])


if __name__ == "__main__":
    unittest.main()
