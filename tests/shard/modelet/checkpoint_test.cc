// Checkpoints: round trip through several writers, finding, pruning, damaged files.
#include "shard/modelet/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/shard/modelet/sample_checkpoint.h"

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : run_(testing::TempDir() + "modelet_checkpoint_test"), checkpoints_(run_ / "checkpoints") {
    fs::remove_all(run_);
  }
  ~CheckpointTest() override { fs::remove_all(run_); }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(checkpoints_)) result.push_back(entry.path().filename());
    return result;
  }

  fs::path run_, checkpoints_;
};

void expect_sample(const fs::path& folder, uint64_t step) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  EXPECT_EQ(checkpoint.index().step, step);
  for (const CheckpointEntry& entry : checkpoint.index().modelets) {
    const SafetensorsFile file = checkpoint.open_modelet(entry.spec);
    EXPECT_THAT(file.values<float>("weight", {entry.spec.neurons(), entry.spec.inputs}),
                testing::ElementsAreArray(sample_weights(entry.spec, step)));
    EXPECT_EQ(file.metadata().at("modelet"), entry.spec.name());
  }
}

TEST_F(CheckpointTest, TwoProcessesWriteOneCheckpoint) {
  CheckpointIndex index = sample_index(1434);
  const auto partition = partition_model(index.experiment, index.shape);
  ASSERT_EQ(partition.size(), 4u);
  const CheckpointWriter rank0(checkpoints_, 1434), rank1(checkpoints_, 1434);
  index.modelets.push_back(write_sample_modelet(rank0, partition[2], 1434));
  index.modelets.push_back(write_sample_modelet(rank0, partition[0], 1434));
  for (int i : {3, 1})
    index.modelets.push_back(
        checkpoint_entry(partition[i], write_sample_modelet(rank1, partition[i], 1434).digest));
  EXPECT_THROW(find_checkpoint(run_), UsageError) << "not visible before commit";

  const fs::path folder = rank0.commit(index, 2);
  EXPECT_EQ(folder, checkpoints_ / "step-0000001434");
  EXPECT_THAT(names(), ElementsAre("step-0000001434"));
  for (const fs::path& path : {run_, checkpoints_, folder}) {
    EXPECT_EQ(find_checkpoint(path), folder);
    EXPECT_EQ(run_of(path), run_);
    EXPECT_EQ(run_of(path / ""), run_);
  }
  const fs::path copy = run_ / "copy";
  fs::copy(folder, copy, fs::copy_options::recursive);
  EXPECT_EQ(run_of(copy), "") << "a checkpoint that lies in no run";
  expect_sample(folder, 1434);

  const CheckpointIndex back = Checkpoint::open(folder).index();
  EXPECT_EQ(back.modelet_version, "test");
  EXPECT_EQ(to_toml(back.experiment), to_toml(index.experiment));
  EXPECT_EQ(back.shape.features, 50u);
  EXPECT_EQ(back.shape.labels, 5u);
  EXPECT_EQ(back.shape.train_rows, 1000u);
  EXPECT_EQ(back.shape.test_rows, 100u);
  EXPECT_EQ(back.shape.features_per_row, 7.25);
  EXPECT_EQ(back.shape.labels_per_row, 1.1);
  EXPECT_EQ(back.shape.label_seed, kLabelSeed);
  EXPECT_EQ(nlohmann::json::parse(back.extra), nlohmann::json::parse(index.extra));
  EXPECT_EQ(format_checkpoint_index(back), read_text_file(folder / "index.json"));
}

TEST_F(CheckpointTest, OldOnesArePrunedNewerOnesNot) {
  for (uint64_t step : {10, 20, 30, 40}) write_sample_checkpoint(checkpoints_, step, 2);
  EXPECT_THAT(names(), UnorderedElementsAre("step-0000000030", "step-0000000040"));
  // The run went back to step 10 and reaches 20 again. This checkpoint stays, and so do the later ones.
  write_sample_checkpoint(checkpoints_, 20, 1);
  EXPECT_THAT(names(), UnorderedElementsAre("step-0000000020", "step-0000000030", "step-0000000040"));
  write_sample_checkpoint(checkpoints_, 100000000000, 1);
  EXPECT_THAT(names(), ElementsAre("step-100000000000"));
  EXPECT_EQ(find_checkpoint(run_), checkpoints_ / "step-100000000000");
}

TEST_F(CheckpointTest, TheBestOneStays) {
  const auto write = [&](uint64_t step, uint64_t best) {
    CheckpointIndex index = sample_index(step);
    index.best_step = best;
    const CheckpointWriter writer(checkpoints_, step);
    for (const ModeletSpec& spec : partition_model(index.experiment, index.shape))
      index.modelets.push_back(write_sample_modelet(writer, spec, step));
    return writer.commit(index, 1);
  };
  write(10, 10);
  const fs::path best = write(20, 20);
  write(30, 20);
  const fs::path newest = write(40, 20);
  EXPECT_THAT(names(), UnorderedElementsAre("step-0000000020", "step-0000000040"));
  EXPECT_EQ(find_checkpoint(run_), newest);
  EXPECT_EQ(find_model(run_), best);
  EXPECT_EQ(find_model(newest), newest) << "a checkpoint that is named is meant";
  EXPECT_EQ(Checkpoint::open(newest).index().best_step, 20u);
  fs::remove_all(best);
  EXPECT_EQ(find_model(run_), newest);
}

TEST_F(CheckpointTest, TheSameStepIsReplaced) {
  write_sample_checkpoint(checkpoints_, 10, 1);
  std::ofstream(checkpoints_ / "step-0000000010" / "old").flush();
  expect_sample(write_sample_checkpoint(checkpoints_, 10, 1), 10);
  EXPECT_THAT(names(), ElementsAre("step-0000000010"));
  EXPECT_FALSE(fs::exists(checkpoints_ / "step-0000000010" / "old"));
}

TEST_F(CheckpointTest, LeftoversOfCrashesAreCleaned) {
  const fs::path complete = write_sample_checkpoint(checkpoints_, 10, 2);
  const auto make = [&](const std::string& folder, const std::string& file) {
    fs::create_directories(checkpoints_ / folder);
    std::ofstream(checkpoints_ / folder / file) << "{}";
  };
  make(".step-0000000015.partial", "output.00000000-00000002.safetensors");
  make(".step-0000000020.partial", "output.00000000-00000003.safetensors");  // another partition
  make(".step-0000000020.partial",
       "input.00000000-00000016.safetensors.tmp.1.0");  // a writer that was killed
  make(".step-0000000020.partial", "index.json");       // killed before the rename
  make(".step-0000000099.partial", "x");                // not ours to judge yet
  make("step-0000000098", "no index here");
  make("step-nonsense", "index.json");
  EXPECT_EQ(find_checkpoint(run_), complete);

  const fs::path next = write_sample_checkpoint(checkpoints_, 20, 2);
  EXPECT_THAT(names(), UnorderedElementsAre("step-0000000010", "step-0000000020", ".step-0000000099.partial",
                                            "step-0000000098", "step-nonsense"));
  EXPECT_EQ(std::distance(fs::directory_iterator(next), fs::directory_iterator()), 5);
  EXPECT_EQ(find_checkpoint(run_), next);
}

TEST_F(CheckpointTest, MissingFilesStopTheCommit) {
  const fs::path before = write_sample_checkpoint(checkpoints_, 10, 1);
  CheckpointIndex index = sample_index(20);
  const auto partition = partition_model(index.experiment, index.shape);
  const CheckpointWriter here(checkpoints_, 20), elsewhere(run_ / "other folder", 20);
  for (const ModeletSpec& spec : partition)
    index.modelets.push_back(write_sample_modelet(spec.id == 2 ? elsewhere : here, spec, 20));
  EXPECT_THAT([&] { here.commit(index, 1); },
              ThrowsMessage<Error>(AllOf(HasSubstr("not there"), HasSubstr("--out"))));
  index.modelets.pop_back();
  EXPECT_THAT([&] { here.commit(index, 1); },
              ThrowsMessage<FormatError>(HasSubstr("one neuron for each label")));
  EXPECT_EQ(find_checkpoint(run_), before);
}

TEST_F(CheckpointTest, NothingToFindIsExplained) {
  EXPECT_THAT([&] { find_checkpoint(run_); }, ThrowsMessage<UsageError>(HasSubstr("no such folder")));
  fs::create_directories(run_);
  EXPECT_THAT([&] { find_checkpoint(run_); }, ThrowsMessage<UsageError>(HasSubstr("no complete checkpoint")));
  EXPECT_THAT([&] { Checkpoint::open(run_); }, ThrowsMessage<Error>(HasSubstr("index.json: No such file")));
}

TEST_F(CheckpointTest, DamagedFilesAreRefused) {
  const fs::path folder = write_sample_checkpoint(checkpoints_, 10, 1);
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const CheckpointEntry entry = checkpoint.index().modelets[3];
  const auto open = [&] { checkpoint.open_modelet(entry.spec); };
  std::string bytes = read_text_file(folder / entry.file);
  bytes[bytes.size() - 1] ^= 1;
  std::ofstream(folder / entry.file) << bytes;
  EXPECT_THAT(open, ThrowsMessage<FormatError>(HasSubstr("damaged")));
  std::ofstream(folder / entry.file) << bytes.substr(1);
  EXPECT_THAT(open, ThrowsMessage<FormatError>(HasSubstr("bytes long, expected")));
  fs::remove(folder / entry.file);
  EXPECT_THAT(open, ThrowsMessage<Error>(HasSubstr("No such file")));

  ModeletSpec other = entry.spec;
  other.end += 1;
  EXPECT_THAT([&] { checkpoint.open_modelet(other); },
              ThrowsMessage<FormatError>(HasSubstr("another partition")));
}

}  // namespace
}  // namespace modelet::shard
