#include "node_agent/owner/owner_service.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "base/text/printable.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

constexpr auto kLookInterval = std::chrono::seconds(1);
constexpr double kMostMinutes = 365 * 24 * 60;  // of a pause

int minute_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return 60 * local.tm_hour + local.tm_min;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_known(const std::string& verb) {
  return verb == "status" || verb == "pause" || verb == "resume" || verb == "drain";
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

OwnerService::OwnerService(OwnerOptions options)
    : options_(std::move(options)),
      // Earlier releases wrote this name.
      request_file_(owner_socket_path(options_.work_dir, options_.name).replace_extension("wish")),
      policy_(options_.preferences, options_.threads),
      allowance_{.threads = options_.threads},
      began_(clock_.now()),
      last_look_(began_),
      socket_(owner_socket_path(options_.work_dir, options_.name),
              [this](const std::string& request) { return response(request); }) {
  mark_as_guest();
  {
    const std::lock_guard lock(mutex_);
    restore_request();
    look(std::nullopt);
  }
  thread_ = std::thread([this] { watch(); });
}

OwnerService::~OwnerService() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

OwnerService::Attendance::Attendance(OwnerService& service, LeaveCall leave) : service_(service) {
  const std::lock_guard lock(service_.mutex_);
  service_.leave_ = std::move(leave);
  service_.attends_ = true;
  service_.asked_to_leave_ = false;
}

OwnerService::Attendance::~Attendance() {
  const std::lock_guard lock(service_.mutex_);
  service_.leave_ = nullptr;
  service_.attends_ = false;
  service_.run_ = 0;
  service_.policy_.set_peers(false);
}

bool OwnerService::Attendance::asked_to_leave() const {
  const std::lock_guard lock(service_.mutex_);
  return service_.asked_to_leave_;
}

bool OwnerService::wait_until_wanted(int stop_fd) {
  for (bool told = false;; told = true) {
    std::string reason;
    {
      const std::lock_guard lock(mutex_);
      if (!allowance_.leave) return true;
      reason = allowance_.reason;
    }
    if (!told) {
      log_info("away from the pool until the machine is lent again: {}", reason);
      options_.on_away(reason);
    }
    pollfd stop{stop_fd, POLLIN, 0};
    if (::poll(&stop, 1, 200) > 0) return false;
  }
}

std::string OwnerService::why_fewer() const {
  const std::lock_guard lock(mutex_);
  return allowance_.reason;
}

void OwnerService::count(const Beat& beat) {
  const std::lock_guard lock(mutex_);
  policy_.set_peers(beat.run != 0 && beat.nodes > 1);
  if (beat.run != 0 && beat.run != std::exchange(last_run_, beat.run)) ++runs_;
  steps_ += beat.done;
  run_ = beat.run;
  step_ = beat.step;
}

void OwnerService::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    const auto sample = load_.sample(clock_.now());
    if (options_.ledger != nullptr) options_.ledger->store();
    lock.lock();
    look(sample);
    changed_.wait_for(lock, kLookInterval, [this] { return ends_; });
  }
}

// Call it with mutex_ held.
void OwnerService::look(const std::optional<HostSample>& sample) {
  const double now = clock_.now();
  Allowance allowance = policy_.decide(now, minute_of_day(), sample);
  if (sample) seen_ = *sample;
  if (allowance_.threads == 0) suspended_seconds_ += now - last_look_;
  last_look_ = now;
  if (allowance.threads != allowance_.threads || allowance.reason != allowance_.reason)
    log_info("{} of {} threads{}{}", allowance.threads, options_.threads,
             allowance.reason.empty() ? "" : ": ", allowance.reason);
  throttle_.allow(allowance.threads);
  allowance_ = std::move(allowance);
  if (!allowance_.leave || !leave_) return;
  asked_to_leave_ = true;
  std::exchange(leave_, nullptr)(allowance_.reason);
}

nlohmann::json OwnerService::response(const std::string& request) {
  std::istringstream words(request);
  std::string verb;
  words >> verb;
  std::optional<double> minutes;
  if (double number = 0; words >> number) minutes = number;
  words.clear();
  std::string rest;
  const bool is_good =
      !(words >> rest) && (!minutes || (verb == "pause" && *minutes > 0 && *minutes <= kMostMinutes));
  const auto seconds = minutes ? std::optional(*minutes * 60) : std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (!is_good || !is_known(verb))
      throw UsageError("'" + printable(request, 64) +
                       "' is not one of: status, pause [MINUTES], resume, drain");
    apply(verb, seconds);
    look(std::nullopt);
  }
  try {
    store_request(verb, seconds);  // without the mutex, for which heartbeats wait: a busy disk may take long
  } catch (const std::exception& error) {
    throw Error(fmt::format("'{}' holds only until the agent ends, because it could not be written down: {}",
                            verb, error.what()));
  }
  return status();
}

void OwnerService::apply(const std::string& request, std::optional<double> seconds) {
  if (request == "pause") policy_.pause(clock_.now(), seconds);
  if (request == "resume") policy_.resume();
  if (request == "drain") policy_.drain();
}

// The file holds the request and, for a pause that ends by itself, when it ends and how long it is. No file: the
// agent may work. Called by one thread at a time.
void OwnerService::store_request(const std::string& request, std::optional<double> seconds) const {
  if (request == "status") return;
  if (request == "resume") {
    fs::remove(request_file_);
    return;
  }
  AtomicFile file(request_file_);
  file.write(seconds ? fmt::format("{} {:.0f} {:.0f}\n", request, unix_time() + *seconds, *seconds)
                     : request + '\n');
  file.commit();
}

void OwnerService::restore_request() {
  constexpr size_t kMostBytes = 256;
  if (!fs::exists(request_file_)) return;
  std::istringstream words(read_text_file(request_file_, kMostBytes));
  std::string request;
  words >> request;
  if (request != "pause" && request != "drain")
    throw Error(request_file_.string() +
                " does not say what the owner wants of this agent; remove it if the agent may work");
  std::optional<double> seconds;
  if (double end = 0; words >> end) seconds = end - unix_time();
  // The machine's clock may be far behind, as after a start without a battery for it.
  if (double length = 0; seconds && words >> length) seconds = std::min(*seconds, length);
  if (seconds && *seconds <= 0) return;
  log_info("its owner's last request was: {}", request);
  apply(request, seconds);
}

nlohmann::json OwnerService::status() const {
  const std::lock_guard lock(mutex_);
  const auto state = [this] {
    if (!attends_) return "away";
    if (asked_to_leave_) return "leaving";
    if (allowance_.threads == 0) return "suspended";
    return run_ != 0 ? "working" : "free";
  };
  return {{"name", options_.name},
          {"state", state()},
          {"reason", allowance_.reason},
          {"threads", allowance_.threads},
          {"most_threads", options_.threads},
          {"others_cores", seen_.others},
          {"run", run_},
          {"step", step_},
          {"runs", runs_},
          {"steps", steps_},
          {"private", options_.ledger == nullptr ? nlohmann::json::array() : options_.ledger->status(options_.preferences.learning)},
          {"seconds", clock_.now() - began_},
          {"suspended_seconds", suspended_seconds_},
          {"cpu_seconds", cpu_seconds()},
          {"peak_memory_bytes", peak_memory_bytes()},
          {"bytes_sent", options_.bytes_sent()}};
}

}  // namespace modelet::agent
