#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <bit>
#include <cstdlib>

namespace modelet {

void start_logging(const std::string& name) {
  auto logger = spdlog::stderr_color_mt(name);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n %^%l%$ %v");
  if (const char* level = std::getenv("MODELET_LOG")) logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args args) {
  constexpr std::array kLevels = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  const spdlog::level::level_enum at = kLevels[static_cast<size_t>(level)];
  if (spdlog::should_log(at)) spdlog::log(at, spdlog::string_view_t(fmt::vformat(format, args)));
}

bool LogLimit::next() {
  constexpr uint64_t kAlways = 20;
  return ++count_ <= kAlways || std::has_single_bit(count_);
}

}  // namespace modelet
