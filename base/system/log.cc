#include "base/system/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <bit>
#include <cstdlib>

#include "base/error.h"
#include "base/text/printable.h"

namespace modelet {

void start_logging(const std::string& name) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool plain = no_color != nullptr && *no_color != '\0';
  auto logger =
      spdlog::stderr_color_mt(name, plain ? spdlog::color_mode::never : spdlog::color_mode::automatic);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n %^%l%$ %v");
  if (const char* wanted = std::getenv("MODELET_LOG"); wanted != nullptr && *wanted != '\0') {
    const spdlog::level::level_enum level = spdlog::level::from_str(wanted);
    // spdlog takes a level that it does not know for silence.
    if (level == spdlog::level::off && std::string_view(wanted) != "off")
      throw UsageError("MODELET_LOG is '" + std::string(wanted) +
                       "'; it must be info, warning, error or off");
    logger->set_level(level);
  }
  spdlog::set_default_logger(std::move(logger));
}

void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args args) {
  constexpr std::array kLevels = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  const spdlog::level::level_enum at = kLevels[static_cast<size_t>(level)];
  if (spdlog::should_log(at)) spdlog::log(at, spdlog::string_view_t(printable(fmt::vformat(format, args))));
}

bool LogLimit::next() {
  constexpr uint64_t kAlways = 20;
  return ++count_ <= kAlways || std::has_single_bit(count_);
}

}  // namespace modelet
