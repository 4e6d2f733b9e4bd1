#include "comm/content/snapshot.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/text/strict_json.h"

namespace modelet::comm {
namespace {

using nlohmann::json;

constexpr const char* kOrigin = "snapshot";
constexpr int kDepth = 5;
constexpr size_t kLongestName = 128;

json as_json(const Snapshot& snapshot) {
  json files = json::array();
  for (const SnapshotFile& file : snapshot.files)
    files.push_back({{"name", file.name},
                     {"content", to_text(file.content)},
                     {"bytes", file.bytes},
                     {"holders", file.holders}});
  return {{"epoch", snapshot.epoch}, {"step", snapshot.step}, {"keep", snapshot.keep}, {"files", files}};
}

// The name of a file. It cannot leave its folder, and is not hidden there.
bool is_file_name(const std::string& name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::ranges::all_of(name, is_plain);
}

const json& array_at(const json& object, const char* key) {
  const json& list = member_at(object, key, kOrigin);
  if (!list.is_array()) throw FormatError(std::string("snapshot: '") + key + "' must be a list");
  return list;
}

SnapshotFile file_of(const json& object) {
  SnapshotFile file{.name = string_at(object, "name", kOrigin),
                    .content = parse_content_id(string_at(object, "content", kOrigin)),
                    .bytes = unsigned_at(object, "bytes", kOrigin),
                    .holders = {}};
  for (const json& holder : array_at(object, "holders")) {
    if (!holder.is_string()) throw FormatError("snapshot: a holder must be the name of a node");
    file.holders.push_back(holder.get<std::string>());
  }
  return file;
}

Snapshot snapshot_of(const json& object) {
  Snapshot snapshot;
  const uint64_t epoch = unsigned_at(object, "epoch", kOrigin);
  if (epoch > UINT32_MAX) throw FormatError("snapshot: no such epoch");
  snapshot.epoch = static_cast<uint32_t>(epoch);
  snapshot.step = unsigned_at(object, "step", kOrigin);
  const json& keep = member_at(object, "keep", kOrigin);
  if (!keep.is_boolean()) throw FormatError("snapshot: 'keep' must be true or false");
  snapshot.keep = keep.get<bool>();
  for (const json& file : array_at(object, "files")) snapshot.files.push_back(file_of(file));
  check(snapshot);
  return snapshot;
}

}  // namespace

void check(const Snapshot& snapshot) {
  if (snapshot.files.size() > kMostSnapshotFiles)
    throw FormatError("snapshot: more than " + std::to_string(kMostSnapshotFiles) + " files");
  std::set<std::string_view> names;
  for (const SnapshotFile& file : snapshot.files) {
    if (!is_file_name(file.name))
      throw FormatError("snapshot: a file's name must be letters, digits, '.', '-' and '_'");
    if (file.holders.size() > kMostHolders)
      throw FormatError("snapshot: more than " + std::to_string(kMostHolders) + " holders of a file");
    if (!names.insert(file.name).second)
      throw FormatError("snapshot: the file '" + file.name + "' is listed twice");
  }
}

std::set<std::string> addresses_of(const Snapshot& snapshot) {
  std::set<std::string> addresses;
  for (const SnapshotFile& file : snapshot.files) addresses.insert(to_text(file.content));
  return addresses;
}

std::string format_snapshot(const Snapshot& snapshot) { return as_json(snapshot).dump(); }

std::string format_snapshots(const std::vector<Snapshot>& snapshots) {
  json list = json::array();
  for (const Snapshot& snapshot : snapshots) list.push_back(as_json(snapshot));
  return list.dump();
}

Snapshot parse_snapshot(std::string_view text) {
  return snapshot_of(parse_strict_json(text, kOrigin, kDepth));
}

std::vector<Snapshot> parse_snapshots(std::string_view text) {
  const json list = parse_strict_json(text, kOrigin, kDepth);
  if (!list.is_array()) throw FormatError("snapshots must be a list");
  std::vector<Snapshot> snapshots;
  for (const json& object : list) snapshots.push_back(snapshot_of(object));
  return snapshots;
}

}  // namespace modelet::comm
