#include "scheduler/client/run_fetcher.h"

#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "scheduler/client/fetch_run.h"

namespace modelet::cli {
namespace {

constexpr std::chrono::seconds kLookAgain{1};

}  // namespace

RunFetcher::RunFetcher(comm::control::SchedulerAddress scheduler, uint64_t run, std::filesystem::path folder,
                       uint32_t newest, std::filesystem::path store)
    : scheduler_(std::move(scheduler)),
      run_(run),
      folder_(std::move(folder)),
      most_(newest),
      store_(std::move(store)),
      thread_([this] { this->run(); }) {}

RunFetcher::~RunFetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void RunFetcher::look(const std::filesystem::path& path) {
  {
    const std::lock_guard lock(mutex_);
    newest_ = path;
    looking_ = true;
  }
  changed_.notify_one();
}

bool RunFetcher::has(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  return arrived_.contains(path);
}

void RunFetcher::run() {
  for (;;) {
    std::filesystem::path wanted;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return looking_ || stop_; });
      if (stop_) return;
      wanted = newest_;
    }
    fetch();
    std::unique_lock lock(mutex_);
    if (arrived_.contains(wanted) && wanted == newest_) looking_ = false;
    if (looking_) changed_.wait_for(lock, kLookAgain, [this] { return stop_; });
  }
}

void RunFetcher::fetch() {
  try {
    fetch_checkpoints(scheduler_, run_, folder_,
                      {.check =
                           [this] {
                             const std::lock_guard lock(mutex_);
                             if (stop_) throw Interrupted("no longer wanted");
                           },
                       .newest = most_,
                       .store = store_,
                       .arrived =
                           [this](const std::filesystem::path& path) {
                             const std::lock_guard lock(mutex_);
                             arrived_.insert(path);
                           }});
  } catch (const Interrupted&) {
  } catch (const std::exception& error) {
    if (!logged_) log_warning("checkpoints of run {} are not fetched yet: {}", run_, error.what());
    logged_ = true;
  }
}

}  // namespace modelet::cli
