// The index of a checkpoint: text that is checked before it is used.
#include "shard/modelet/checkpoint/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "tests/shard/modelet/sample_checkpoint.h"

namespace modelet::shard {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string sample_index_text() {
  CheckpointIndex index = sample_index(10);
  for (const ModeletSpec& spec : partition_model(index.experiment, index.shape))
    index.modelets.push_back({spec, spec.name() + ".safetensors", {100, 0x0123456789abcdef}});
  return format_checkpoint_index(index);
}

// Before version 2, the seed of the run determined which neuron belongs to which label.
TEST(CheckpointIndexTest, LabelsOfOldModelsStayWhereTheyAre) {
  CheckpointIndex index = sample_index(10);
  index.experiment.train.seed = 77;
  for (const ModeletSpec& spec : partition_model(index.experiment, index.shape))
    index.modelets.push_back({spec, spec.name() + ".safetensors", {100, 0x0123456789abcdef}});
  auto json = nlohmann::json::parse(format_checkpoint_index(index));
  EXPECT_EQ(parse_checkpoint_index(json.dump(), "/c").shape.label_seed, kLabelSeed);
  json["version"] = 1;
  json["data_shape"].erase("label_seed");
  EXPECT_EQ(parse_checkpoint_index(json.dump(), "/c").shape.label_seed, 77u);
}

TEST(CheckpointIndexTest, DefectsAreNamed) {
  const auto original = nlohmann::json::parse(sample_index_text());
  const auto rejects = [&](const std::function<void(nlohmann::json&)>& edit, const std::string& text) {
    nlohmann::json json = original;
    edit(json);
    EXPECT_THAT([&] { parse_checkpoint_index(json.dump(), "/c"); },
                ThrowsMessage<FormatError>(AllOf(HasSubstr("/c/index.json"), HasSubstr(text))));
  };
  using J = nlohmann::json;
  EXPECT_NO_THROW(parse_checkpoint_index(original.dump(), "/c"));
  J of_before = original;  // a codec that was removed since
  std::string text = of_before["experiment"];
  const std::string codec = "gradient_codec = ";
  const size_t at = text.find(codec) + codec.size();
  of_before["experiment"] = text.replace(at, text.find('\n', at) - at, "\"topk\"");
  EXPECT_EQ(parse_checkpoint_index(of_before.dump(), "/c").experiment.exchange.gradient_codec,
            CodecKind::kInt4);
  rejects([](J& j) { j = J::array(); }, "in an object");
  rejects([](J& j) { j["format"] = "other"; }, "not the index of a Modelet checkpoint");
  rejects([](J& j) { j["version"] = 3; }, "version 3; this program reads versions 1 and 2");
  rejects([](J& j) { j["data_shape"].erase("label_seed"); }, "'label_seed' is missing");
  rejects([](J& j) { j["step"] = -1; }, "'step' is not an unsigned");
  rejects([](J& j) { j.erase("step"); }, "'step' is missing");
  rejects([](J& j) { j["experiment"] = "[train]\nepoch = 3"; }, "unknown key 'train.epoch'");
  rejects([](J& j) { j["data_shape"]["labels"] = 6; }, "one neuron for each label");
  rejects([](J& j) { j["data_shape"]["occurring_features"] = 51; },
          "'occurring_features' is 51, more than the 50 features");
  rejects([](J& j) { j["data_shape"]["features"] = 51; }, "inputs");
  rejects([](J& j) { j["modelets"] = 3; }, "not a list");
  rejects([](J& j) { j["modelets"] = J::array(); }, "no modelets");
  rejects([](J& j) { j["modelets"].erase(1); }, "id is not its position");
  rejects([](J& j) { j["modelets"].erase(3); }, "one neuron for each label");
  rejects([](J& j) { j["modelets"].erase(3), j["modelets"].erase(2); }, "no output layer");
  rejects([](J& j) { j["modelets"][1]["layer"] = 2; }, "layers do not count up");
  rejects([](J& j) { j["modelets"][3]["layer"] = 1000; }, "more than 64");
  rejects([](J& j) { j["modelets"][1]["kind"] = "deep"; }, "unknown kind");
  rejects([](J& j) { j["modelets"][1]["file"] = "../../etc/passwd"; }, "name and file");
  rejects([](J& j) { j["modelets"][1]["name"] = "x"; }, "name and file");
  rejects([](J& j) { j["modelets"][1]["begin"] = 32; }, "empty range");
  rejects([](J& j) { j["modelets"][1]["xxh3"] = "123"; }, "16 hexadecimal");
  rejects([](J& j) { j["modelets"][1]["xxh3"] = "-123456789abcdef"; }, "16 hexadecimal");
  rejects([](J& j) { j["modelets"][1].erase("bytes"); }, "modelet 1: 'bytes' is missing");
  rejects([](J& j) { j["extra"] = 3; }, "'extra' is not an object");
  EXPECT_THROW(parse_checkpoint_index(std::string(100000, '['), "/c"), FormatError);
}

TEST(CheckpointIndexTest, MutatedTextNeverDoesMoreThanFail) {
  const std::string original = sample_index_text();
  Rng rng(9);
  int accepted = 0;
  constexpr int kRounds = 5000;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = original;
    const uint32_t at = rng.below(static_cast<uint32_t>(text.size()));
    switch (rng.below(4)) {
      case 0:
        text[at] = static_cast<char>(rng.below(256));
        break;
      case 1:
        text[at] = "0123456789[]{},:\"-. eE"[rng.below(22)];
        break;
      case 2:
        text.erase(at, 1 + rng.below(40));
        break;
      default:
        text.insert(at, text.substr(rng.below(static_cast<uint32_t>(text.size())), rng.below(40)));
    }
    try {
      const CheckpointIndex index = parse_checkpoint_index(text, "/c");
      ++accepted;
      for (const CheckpointEntry& entry : index.modelets) ASSERT_EQ(entry.file.find('/'), std::string::npos);
    } catch (const FormatError&) {
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kRounds);
}

}  // namespace
}  // namespace modelet::shard
