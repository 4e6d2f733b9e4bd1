#include "base/system/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/text/printable.h"

namespace modelet {
namespace {

constexpr const char* kForOwnerName = " (not passed on)";

// Whether standard error goes to the journal, which notes the time of each line itself (systemd.exec(5)).
bool writes_to_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  return stream != nullptr && ::fstat(STDERR_FILENO, &info) == 0 &&
         stream == fmt::format("{}:{}", info.st_dev, info.st_ino);
}

}  // namespace

void start_logging(const std::string& name) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool plain = no_color != nullptr && *no_color != '\0';
  auto logger =
      spdlog::stderr_color_mt(name, plain ? spdlog::color_mode::never : spdlog::color_mode::automatic);
  logger->set_pattern(writes_to_journal() ? "%n %^%l%$ %v" : "%Y-%m-%dT%H:%M:%S.%e %n %^%l%$ %v");
  if (const char* wanted = std::getenv("MODELET_LOG"); wanted != nullptr && *wanted != '\0') {
    const spdlog::level::level_enum level = spdlog::level::from_str(wanted);
    // spdlog returns `off` for a name that it does not know.
    if (level == spdlog::level::off && std::string_view(wanted) != "off")
      throw UsageError("MODELET_LOG is '" + std::string(wanted) +
                       "'; it must be info, warning, error or off");
    logger->set_level(level);
  }
  const auto for_owner = std::make_shared<spdlog::logger>(name + kForOwnerName, logger->sinks().front());
  for_owner->set_level(logger->level());
  spdlog::register_logger(for_owner);
  spdlog::set_default_logger(std::move(logger));
}

void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args args) {
  constexpr std::array kLevels = {spdlog::level::info, spdlog::level::warn, spdlog::level::err,
                                  spdlog::level::warn};
  const spdlog::level::level_enum at = kLevels[static_cast<size_t>(level)];
  if (!spdlog::should_log(at)) return;
  const std::string text = printable(fmt::vformat(format, args));
  const auto all = spdlog::default_logger();
  const auto for_owner = level == LogLevel::kForOwner ? spdlog::get(all->name() + kForOwnerName) : nullptr;
  (for_owner ? for_owner : all)->log(at, spdlog::string_view_t(text));
}

class LogTail::Sink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Sink(size_t bytes) : most_(bytes) {}

  std::vector<std::string> take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> taken;
    for (size_t size = 0; !lines_.empty() && (taken.empty() || size + lines_.front().size() <= bytes);) {
      size += lines_.front().size();
      bytes_ -= lines_.front().size();
      taken.push_back(std::move(lines_.front()));
      lines_.pop_front();
    }
    return taken;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto level = spdlog::level::to_string_view(message.level);
    lines_.push_back(fmt::format("{} {} {}", utc_text(message.time),
                                 std::string_view(level.data(), level.size()),
                                 std::string_view(message.payload.data(), message.payload.size())));
    bytes_ += lines_.back().size();
    for (; bytes_ > most_; lines_.pop_front()) bytes_ -= lines_.front().size();
  }
  void flush_() override {}

 private:
  const size_t most_;
  size_t bytes_ = 0;  // guarded by mutex_, as lines_
  std::deque<std::string> lines_;
};

LogTail::LogTail(size_t bytes) : sink_(std::make_shared<Sink>(bytes)) {
  spdlog::default_logger()->sinks().push_back(sink_);
}

LogTail::~LogTail() { std::erase(spdlog::default_logger()->sinks(), sink_); }

std::vector<std::string> LogTail::take(size_t bytes) { return sink_->take(bytes); }

bool LogLimit::next() {
  constexpr uint64_t kAlways = 20;
  return ++count_ <= kAlways || std::has_single_bit(count_);
}

}  // namespace modelet
