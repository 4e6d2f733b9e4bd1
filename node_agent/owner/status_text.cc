#include "node_agent/owner/status_text.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/printable.h"

namespace modelet::agent {
namespace {

std::string time_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace

std::string status_text(const nlohmann::json& status) {
  try {
    const auto number = [&](const char* key) { return status.at(key).get<double>(); };
    const auto text = [&](const char* key) { return printable(status.at(key).get<std::string>(), 256); };
    const std::string reason = text("reason");
    std::string lines =
        fmt::format("{}: {}, {} of {} threads{}\n", text("name"), text("state"), number("threads"),
                    number("most_threads"), reason.empty() ? "" : " (" + reason + ")");
    if (number("run") > 0) lines += fmt::format("  run {}, step {}\n", number("run"), number("step"));
    lines += fmt::format("  others use {:.1f} cores\n", number("others_cores"));
    lines += fmt::format(
        "  in {}: {} runs, {} steps, {} of CPU time, {:.1f} MB sent, suspended for {}; at most {:.0f} MiB of memory\n",
        time_text(number("seconds")), number("runs"), number("steps"), time_text(number("cpu_seconds")),
        number("bytes_sent") / 1e6, time_text(number("suspended_seconds")),
        number("peak_memory_bytes") / (1 << 20));
    const auto budget = [](const nlohmann::json& each) -> std::string {
      if (!each.contains("epsilon")) return "";
      const std::string spent = each.at("epsilon").is_null() ? "without bound" : fmt::format("{:.3g}", each.at("epsilon").get<double>());
      return fmt::format("; epsilon {} at delta {}{}", spent, each.at("delta").get<double>(),
                         each.contains("epsilon_left") ? fmt::format(" ({:.3g} is left)", each.at("epsilon_left").get<double>()) : "");
    };
    for (const nlohmann::json& each : status.value("private", nlohmann::json::array()))
      lines += fmt::format("  private data '{}': {} runs have learned from it, {} rounds{}, {} samples with repetition{}\n",
                           printable(each.at("name").get<std::string>(), 64), each.at("runs").get<double>(),
                           each.at("rounds").get<double>(),
                           each.contains("rounds_left")
                               ? fmt::format(" ({} are left)", each.at("rounds_left").get<double>())
                               : "",
                           each.at("samples").get<double>(), budget(each));
    return lines;
  } catch (const nlohmann::json::exception&) {
    throw Error("the agent's answer makes no sense: use the same release of modelet-agent");
  }
}

}  // namespace modelet::agent
