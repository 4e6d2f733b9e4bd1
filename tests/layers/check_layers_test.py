"""The checker finds what it is there for: each rule is broken once in a small tree."""
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

    def test_direction(self):
        for path, include in [("base/x.cc", "hashing/index.h"), ("hashing/x.cc", "comm/codec.h"),
                              ("comm/x.cc", "hashing/index.h"), ("comm/x.cc", "scheduler/plan.h"),
                              ("hashing/x.cc", "scheduler/plan.h"), ("shard/data/x.cc", "comm/codec.h"),
                              ("scheduler/x.cc", "shard/modelet.h"), ("scheduler/main.cc", "scheduler/cli/train.h"),
                              ("node_agent/main.cc", "scheduler/plan.h"), ("comm/x.cc", "node_agent/trainer.h")]:
            for text in (f'#include "{include}"\n', f"  #  include <{include}>\n"):
                self.assertEqual(len(self.found(path, text)), 1, (path, text))
        self.assertEqual(self.found("comm/x.cc", '\n#include "shard/modelet.h"\n'),
                         ["comm/x.cc:2: comm must not include shard (shard/modelet.h)"])

    def test_allowed(self):
        for path, include in [("shard/x.cc", "hashing/index.h"), ("node_agent/x.cc", "comm/codec.h"),
                              ("node_agent/x.cc", "shard/data/batch.h"), ("scheduler/x.cc", "comm/codec.h"),
                              ("scheduler/cli/x.cc", "node_agent/trainer.h"), ("tests/comm/x.cc", "shard/modelet.h"),
                              ("comm/x.cc", "base/error.h")]:
            self.assertEqual(self.found(path, f'#include "{include}"\n'), [], (path, include))

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
