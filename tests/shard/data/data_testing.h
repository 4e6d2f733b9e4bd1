// What the tests of shard/data share: samples that own their arrays, text in memory, a folder that goes away.
#pragma once

#include <stdlib.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "shard/data/dataset.h"
#include "shard/data/xmc_reader.h"

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

// XMC text -> prepared file.
inline void prepare_xmc(const std::filesystem::path& text, const std::filesystem::path& prepared,
                        Normalize normalize) {
  prepare_data(text, normalize, {}, prepared);
}

// Puts the right checksum into the header of a prepared file (docs/data_format.md), as somebody who makes one
// by hand would.
inline void seal_header(std::span<std::byte> file) {
  constexpr size_t kChecksumAt = 248;
  if (file.size() < kChecksumAt + sizeof(uint64_t)) return;
  const uint64_t checksum = XXH3_64bits(file.data(), kChecksumAt);
  std::memcpy(file.data() + kChecksumAt, &checksum, sizeof checksum);
}

}  // namespace modelet::shard::testing
