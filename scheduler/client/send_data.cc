#include "scheduler/client/send_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/system/clock.h"
#include "base/system/file.h"
#include "comm/content/transfer/transfer.h"
#include "node_agent/train/job/snapshot.h"

namespace modelet::cli {

namespace {

comm::ContentId send_file(comm::DataLink& link, std::span<const std::byte> file, const std::string& what,
                          Reporter* reporter) {
  constexpr double kReportEvery = 1;  // seconds
  const auto manifest = comm::Manifest::of(file);
  const Stopwatch watch;
  Stopwatch since_report;
  comm::send_content(link, manifest, comm::reader_of(file), {}, [&](uint64_t bytes, uint64_t total) {
    if (reporter == nullptr || (bytes < total && since_report.seconds() < kReportEvery)) return;
    since_report.lap();
    const double rate = static_cast<double>(bytes) / std::max(1e-9, watch.seconds());
    reporter->handle({{"event", "sending"},
                      {"data", what},
                      {"bytes", bytes},
                      {"total_bytes", total},
                      {"bytes_per_second", rate},
                      {"eta_seconds", static_cast<double>(total - bytes) / rate}});
  });
  return manifest.id();
}

}  // namespace

std::string send_data(const comm::control::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter, double ask_again) {
  comm::DataLink link(server, {.ask_again = ask_again});
  return comm::to_text(send_file(link, data.file(), what, &reporter));
}

comm::Snapshot send_checkpoint(const comm::control::SchedulerAddress& server,
                               const shard::Checkpoint& checkpoint, Reporter* reporter, double ask_again,
                               std::function<void()> check) {
  comm::DataLink link(server, {.ask_again = ask_again, .check = std::move(check)});
  comm::Snapshot snapshot{.step = checkpoint.index().step, .keep = true};
  for (const agent::NamedFile& file : agent::snapshot_files(checkpoint)) {
    const MappedFile mapped(file.path);
    snapshot.files.push_back({.name = file.name,
                              .content = send_file(link, mapped.bytes(), file.name, reporter),
                              .bytes = mapped.bytes().size(),
                              .holders = {""}});
  }
  return snapshot;
}

}  // namespace modelet::cli
