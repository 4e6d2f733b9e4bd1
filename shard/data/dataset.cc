#include "shard/data/dataset.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "shard/data/line_reader.h"

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;

const char* name_of(Normalize normalize) { return normalize == Normalize::kL2 ? "l2" : "none"; }

fs::path cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  fs::path folder;
  if (const auto own = variable("MODELET_CACHE"); !own.empty()) {
    folder = own;
  } else if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    folder = fs::path(cache) / "modelet";
  } else if (const auto home = variable("HOME"); !home.empty()) {
    folder = fs::path(home) / ".cache" / "modelet";
  } else {
    throw Error("no folder for prepared data: set MODELET_CACHE to one");
  }
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw Error(folder.string() + ": " + failure.message() +
                "; set MODELET_CACHE to a folder for prepared data");
  return folder;
}

// Changes whenever the text, or what is made of it, may have changed.
fs::path cache_entry(const fs::path& text, Normalize normalize) {
  struct stat info {};
  if (::stat(text.c_str(), &info) != 0) throw Error(errno_text(text.string()));
  std::string key = fs::canonical(text).string();
  for (const long long part :
       {static_cast<long long>(info.st_size), static_cast<long long>(info.st_mtim.tv_sec),
        static_cast<long long>(info.st_mtim.tv_nsec), static_cast<long long>(kPreparedVersion)})
    key += '\n' + std::to_string(part);
  key += '\n';
  key += name_of(normalize);
  constexpr char kHex[] = "0123456789abcdef";
  std::string name = text.filename().string() + ".";
  const uint64_t hash = XXH3_64bits(key.data(), key.size());
  for (int shift = 60; shift >= 0; shift -= 4) name += kHex[(hash >> shift) & 15];
  return cache_folder() / (name + ".mlt");
}

Dataset open_through_cache(const fs::path& text, Normalize normalize) {
  const fs::path entry = cache_entry(text, normalize);
  if (fs::exists(entry)) {
    try {
      return Dataset::open(entry, true);
    } catch (const FormatError&) {
      // A damaged entry is only a lost copy: make it anew.
    }
  }
  prepare_text(text, entry, normalize);
  return Dataset::open(entry, true);
}

}  // namespace

Dataset Dataset::open(const std::filesystem::path& path, bool verify) {
  Dataset data;
  data.file_ = MappedFile(path);
  data.view_ = parse_prepared(data.file_.bytes(), path.string(), verify);
  return data;
}

Dataset load_dataset(const std::filesystem::path& path, Normalize normalize) {
  Dataset data = is_prepared(path) ? Dataset::open(path, true) : open_through_cache(path, normalize);
  if (data.normalize() != normalize)
    throw UsageError(path.string() + ": was prepared with normalisation '" + name_of(data.normalize()) +
                     "', data.normalize asks for '" + name_of(normalize) +
                     "': change that key, or prepare the file again");
  if (data.rows() == 0) throw FormatError(path.string() + ": holds no samples");
  return data;
}

std::vector<std::string> load_label_names(const std::filesystem::path& path, size_t labels) {
  LineReader lines(path);
  std::vector<std::string> names;
  const std::string wanted = "one name a line for each of " + std::to_string(labels) + " labels is expected";
  for (std::string_view line; lines.next(line);) {
    if (names.size() == labels) lines.fail("more lines than labels; " + wanted);
    names.emplace_back(line);
  }
  if (names.size() < labels)
    lines.fail("the file ends after " + std::to_string(names.size()) + " names; " + wanted);
  return names;
}

std::vector<uint32_t> count_labels(const Dataset& data) {
  std::vector<uint32_t> counts(data.labels());
  for (size_t row = 0; row < data.rows(); ++row)
    for (const uint32_t label : data.sample(row).labels) ++counts[label];
  return counts;
}

DataShape describe_shape(const Dataset& train, const Dataset& test) {
  if (train.features() != test.features() || train.labels() != test.labels())
    throw UsageError("data.train has " + std::to_string(train.features()) + " features and " +
                     std::to_string(train.labels()) + " labels, data.test " +
                     std::to_string(test.features()) + " and " + std::to_string(test.labels()) +
                     ": both must count the same ids; correct the headers");
  const auto mean = [&](size_t entries) {
    return train.rows() == 0 ? 0.0 : static_cast<double>(entries) / static_cast<double>(train.rows());
  };
  DataShape shape;
  shape.features = train.features();
  shape.labels = train.labels();
  shape.train_rows = train.rows();
  shape.test_rows = test.rows();
  shape.features_per_row = mean(train.nonzeros());
  shape.labels_per_row = mean(train.label_entries());
  return shape;
}

}  // namespace modelet::shard
