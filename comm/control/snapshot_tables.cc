#include "comm/control/snapshot_tables.h"

#include <array>
#include <bit>
#include <utility>

namespace modelet::comm::control {
namespace {

comm::Snapshot checked_snapshot(uint32_t epoch, uint64_t step, bool keep,
                                const std::vector<std::unique_ptr<SnapshotFileT>>& files) {
  comm::Snapshot snapshot{.epoch = epoch, .step = step, .keep = keep, .files = {}};
  for (const auto& file : files)
    snapshot.files.push_back(
        {file->name, {std::bit_cast<std::array<std::byte, 32>>(file->content)}, file->bytes, file->holders});
  check(snapshot);
  return snapshot;
}

}  // namespace

std::vector<std::unique_ptr<SnapshotFileT>> to_tables(const std::vector<comm::SnapshotFile>& files) {
  std::vector<std::unique_ptr<SnapshotFileT>> tables;
  for (const comm::SnapshotFile& file : files)
    tables.push_back(std::make_unique<SnapshotFileT>(SnapshotFileT{
        {}, file.name, std::bit_cast<ContentHash>(file.content.bytes), file.bytes, file.holders}));
  return tables;
}

std::unique_ptr<SnapshotT> to_table(const comm::Snapshot& snapshot) {
  auto table = std::make_unique<SnapshotT>();
  table->epoch = snapshot.epoch;
  table->step = snapshot.step;
  table->keep = snapshot.keep;
  table->files = to_tables(snapshot.files);
  return table;
}

size_t bytes_in_message(const comm::Snapshot& snapshot) {
  constexpr size_t kAroundFile = 80, kAroundText = 12;
  size_t bytes = kAroundFile;
  for (const comm::SnapshotFile& file : snapshot.files) {
    bytes += kAroundFile + file.name.size();
    for (const std::string& holder : file.holders) bytes += kAroundText + holder.size();
  }
  return bytes;
}

comm::Snapshot snapshot_of(const SnapshotT& table) {
  return checked_snapshot(table.epoch, table.step, table.keep, table.files);
}

comm::Snapshot snapshot_of(const SnapshotHeldT& message) {
  return checked_snapshot(message.epoch, message.step, message.keep, message.files);
}

}  // namespace modelet::comm::control
