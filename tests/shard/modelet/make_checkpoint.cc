// make_checkpoint FOLDER: writes the sample checkpoint of step 7 below FOLDER, for the test of the Python
// reader.
#include <cstdio>

#include "tests/shard/modelet/sample_checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto folder = modelet::shard::write_sample_checkpoint(argv[1], 7, 1);
  std::printf("%s\n", folder.c_str());
  return 0;
}
