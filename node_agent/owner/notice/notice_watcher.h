// NoticeWatcher: asks a source every few seconds until it gives a notice. It has a thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "node_agent/owner/notice/notice.h"

namespace modelet::agent {

class NoticeWatcher {
 public:
  // Called at most once, on the watcher's thread.
  using OnNotice = std::function<void(const Notice&)>;

  // If the source cannot be asked, that is logged, and it is asked again.
  NoticeWatcher(std::unique_ptr<NoticeSource> source, double interval_seconds, OnNotice on_notice);
  NoticeWatcher(const NoticeWatcher&) = delete;
  NoticeWatcher& operator=(const NoticeWatcher&) = delete;
  ~NoticeWatcher();  // waits for a question under way

 private:
  void watch();

  const std::unique_ptr<NoticeSource> source_;
  const double interval_seconds_;
  const OnNotice on_notice_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace modelet::agent
