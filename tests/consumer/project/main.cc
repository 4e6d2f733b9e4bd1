// consumer FOLDER: uses a little of each library, as a program outside of the project would.
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/experiment/partition.h"
#include "comm/codec/codec.h"
#include "hashing/hash_family.h"
#include "shard/format/safetensors.h"

namespace {

void run(const std::string& folder) {
  const modelet::Experiment experiment =
      modelet::parse_experiment("[data]\ntrain = \"train.txt\"\ntest = \"test.txt\"\n",
                                folder + "/experiment.toml", {"model.hidden=[64]"});
  const auto partition = modelet::partition_model(experiment, {.features = 1000, .labels = 500});
  std::printf("%zu modelets, the last one is %s\n", partition.size(), partition.back().name().c_str());

  for (const modelet::comm::Codec* codec : modelet::comm::all_codecs())
    std::printf("codec %s\n", std::string(codec->name()).c_str());

  const std::vector<float> vector(64, 0.5f);
  std::vector<uint32_t> codes(16);
  modelet::hashing::HashMemory scratch;
  modelet::hashing::make_hash_family({.dim = vector.size()})->hash(vector, codes, scratch);
  std::printf("code of table 0: %u\n", codes[0]);

  const std::string path = folder + "/vector.safetensors";
  modelet::shard::write_safetensors(path, std::vector{modelet::shard::tensor("x", {8, 8}, vector)});
  const modelet::shard::SafetensorsFile file{std::filesystem::path(path)};
  std::printf("x[0] = %g\n", static_cast<double>(file.values<float>("x", {8, 8})[0]));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw modelet::UsageError("usage: consumer FOLDER");
    run(argv[1]);
  } catch (const modelet::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
  return 0;
}
