#include "scheduler/client/send_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/system/clock.h"
#include "comm/content/transfer/transfer.h"

namespace modelet::cli {

std::string send_data(const comm::control::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter, double ask_again) {
  constexpr double kReportEvery = 1;  // seconds
  const auto file = data.file();
  const auto manifest = comm::Manifest::of(file);
  comm::DataLink link(server, {.ask_again = ask_again});
  const Stopwatch watch;
  Stopwatch since_report;
  comm::send_content(link, manifest, file, {}, [&](uint64_t bytes, uint64_t total) {
    if (bytes < total && since_report.seconds() < kReportEvery) return;
    since_report.lap();
    const double rate = static_cast<double>(bytes) / std::max(1e-9, watch.seconds());
    reporter.handle({{"event", "sending"},
                     {"data", what},
                     {"bytes", bytes},
                     {"total_bytes", total},
                     {"bytes_per_second", rate},
                     {"eta_seconds", static_cast<double>(total - bytes) / rate}});
  });
  return comm::to_text(manifest.id());
}

}  // namespace modelet::cli
