#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <bit>
#include <cstdlib>

namespace modelet {

void start_logging(const std::string& name) {
  auto logger = spdlog::stderr_color_mt(name);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n %^%l%$ %v");
  if (const char* level = std::getenv("MODELET_LOG")) logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

bool LogLimit::next() {
  constexpr uint64_t kAlways = 20;
  return ++count_ <= kAlways || std::has_single_bit(count_);
}

}  // namespace modelet
