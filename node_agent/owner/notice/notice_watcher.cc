#include "node_agent/owner/notice/notice_watcher.h"

#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/log.h"

namespace modelet::agent {

NoticeWatcher::NoticeWatcher(std::unique_ptr<NoticeSource> source, double interval_seconds,
                             OnNotice on_notice)
    : source_(std::move(source)), interval_seconds_(interval_seconds), on_notice_(std::move(on_notice)) {
  thread_ = std::thread([this] { watch(); });
}

NoticeWatcher::~NoticeWatcher() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NoticeWatcher::watch() {
  LogLimit failures;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    try {
      if (const std::optional<Notice> notice = source_->ask()) {
        log_warning("this machine goes away in {:.0f} s: {}", notice->seconds, notice->reason);
        return on_notice_(*notice);
      }
    } catch (const Interrupted&) {
      return;
    } catch (const std::exception& error) {
      if (failures.next())
        log_warning("no news whether this machine stays ({} times): {}", failures.count(), error.what());
    }
    lock.lock();
    changed_.wait_for(lock, Seconds(interval_seconds_), [this] { return ends_; });
  }
}

}  // namespace modelet::agent
