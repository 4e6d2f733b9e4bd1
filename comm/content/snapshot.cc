#include "comm/content/snapshot.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

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
std::string file_name_at(const json& file) {
  std::string name = string_at(file, "name", kOrigin);
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  };
  if (name.empty() || name.size() > kLongestName || name.front() == '.' ||
      !std::ranges::all_of(name, is_plain))
    throw FormatError("snapshot: a file's name must be letters, digits, '.', '-' and '_'");
  return name;
}

const json& array_at(const json& object, const char* key, size_t most) {
  const json& list = member_at(object, key, kOrigin);
  if (!list.is_array() || list.size() > most)
    throw FormatError(std::string("snapshot: '") + key + "' must be a list of at most " +
                      std::to_string(most));
  return list;
}

SnapshotFile file_of(const json& object) {
  SnapshotFile file{.name = file_name_at(object),
                    .content = parse_content_id(string_at(object, "content", kOrigin)),
                    .bytes = unsigned_at(object, "bytes", kOrigin),
                    .holders = {}};
  for (const json& holder : array_at(object, "holders", kMostHolders)) {
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
  std::set<std::string> names;
  for (const json& file : array_at(object, "files", kMostSnapshotFiles)) {
    snapshot.files.push_back(file_of(file));
    if (!names.insert(snapshot.files.back().name).second)
      throw FormatError("snapshot: the file '" + snapshot.files.back().name + "' is listed twice");
  }
  return snapshot;
}

}  // namespace

std::string format_snapshot(const Snapshot& snapshot) { return as_json(snapshot).dump(); }

std::string format_snapshots(const std::vector<Snapshot>& snapshots, size_t most_bytes) {
  std::string list;
  for (const Snapshot& snapshot : snapshots) {
    const std::string next = format_snapshot(snapshot);
    if (!list.empty() && list.size() + next.size() + 1 >= most_bytes) break;
    list += list.empty() ? '[' : ',';
    list += next;
  }
  return list.empty() ? "[]" : list + ']';
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
