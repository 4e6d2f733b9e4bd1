// What the tests of shard share: samples that own their arrays, text in memory, a temporary folder.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/array/aligned.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/xmc_reader.h"
#include "shard/data/store/dataset.h"

namespace modelet::shard::testing {

struct OwnedSample {
  std::vector<uint32_t> features;
  std::vector<float> values;
  std::vector<uint32_t> labels;

  OwnedSample() = default;
  OwnedSample(std::vector<uint32_t> f, std::vector<float> v, std::vector<uint32_t> l)
      : features(std::move(f)), values(std::move(v)), labels(std::move(l)) {}
  explicit OwnedSample(const Sample& s)
      : features(s.features.begin(), s.features.end()),
        values(s.values.begin(), s.values.end()),
        labels(s.labels.begin(), s.labels.end()) {}

  Sample view() const { return {features, values, labels}; }
  bool operator==(const OwnedSample&) const = default;
};

inline XmcReader reader_of(const std::string& text) {
  return XmcReader(std::make_unique<std::stringbuf>(text, std::ios::in), "data.txt");
}

inline std::vector<OwnedSample> read_all(XmcReader reader) {
  std::vector<OwnedSample> samples;
  for (Sample sample; reader.next(sample);) samples.emplace_back(sample);
  return samples;
}

inline std::vector<OwnedSample> read_text(const std::string& text) { return read_all(reader_of(text)); }

inline std::vector<OwnedSample> samples_of(const Dataset& data) {
  std::vector<OwnedSample> samples;
  for (size_t row = 0; row < data.rows(); ++row) samples.emplace_back(data.sample(row));
  return samples;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "modelet-data-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Prepares XMC text.
inline void prepare_xmc(const std::filesystem::path& text, const std::filesystem::path& prepared,
                        Normalize normalize) {
  prepare_data(text, normalize, {}, prepared);
}

// Puts the right checksum of header and table into a prepared file (docs/data_format.md), as somebody would who
// makes such a file by hand.
inline void seal_header(std::span<std::byte> file) {
  constexpr size_t kChecksumAt = 16, kFrom = 24, kHeader = 64, kEntry = 64;
  uint32_t sections = 0;
  if (file.size() < kHeader) return;
  std::memcpy(&sections, file.data() + kFrom, sizeof sections);
  const size_t end = kHeader + size_t{sections} * kEntry;
  if (file.size() < end) return;
  const uint64_t checksum = XXH3_64bits(file.data() + kFrom, end - kFrom);
  std::memcpy(file.data() + kChecksumAt, &checksum, sizeof checksum);
}

// The state of an encoder may come from anywhere. Restores `rounds` damaged copies of a state. Each must be
// refused with an Error or pass `check(encoder, damaged state)`. Both must happen at least once, or the test
// shows nothing.
template <class Check>
void restore_damaged(std::span<const std::byte> state, uint64_t rounds, const Check& check) {
  constexpr size_t kHead = 4096;  // long states end in bit sets, where every value is valid
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < rounds; ++i) {
    Rng rng(5, {i});
    AlignedVector<std::byte> damaged(state.begin(), state.end());
    for (uint32_t change = 0; change <= rng.below(3); ++change)
      damaged[rng.below(static_cast<uint32_t>(std::min(damaged.size(), kHead)))] =
          static_cast<std::byte>(rng.next());
    if (rng.below(4) == 0) damaged.resize(rng.below(static_cast<uint32_t>(damaged.size())));
    try {
      const auto encoder = restore_encoder(damaged, "state");
      ++accepted;
      check(*encoder, std::span<const std::byte>(damaged));
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, rounds / 100);
  EXPECT_LT(accepted, rounds * 2 / 3);
}

}  // namespace modelet::shard::testing
