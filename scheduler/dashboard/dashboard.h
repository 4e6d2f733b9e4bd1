// Dashboard: the page of a pool, and the JSON that it reads, as routes of a Router (docs/dashboard.md):
//
//   GET  /                                the page; with ?token=TOKEN the token becomes a cookie
//   GET  /FILE                            what the page consists of (page/); needs no token, because it says nothing
//   GET  /api/pool                        the pool, its nodes and runs
//   GET  /api/history                     where the time of steps went on each node
//   GET  /api/runs/{run}                  one run: status, experiment, placement
//   GET  /api/runs/{run}/events           its events
//   GET  /api/runs/{run}/logs/{node}      what a node has logged for it
//   POST /api/nodes/{node}/drain, /undrain, /api/runs/{run}/stop
//
// The view and the router must outlive it, and the server of the router must end before it. It has no threads of its
// own: those of the server call it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/http/router.h"
#include "scheduler/dashboard/pool_view.h"

namespace modelet::scheduler {

class Dashboard {
 public:
  Dashboard(PoolView& view, comm::http::Router& router);
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

 private:
  // A state as text. The version is that of the last state in which something was different, other than what changes
  // with time alone.
  struct Rendered {
    std::shared_ptr<const PoolState> of;
    uint64_t version = 0;
    std::string beginning;          // of the object, up to the runs
    std::vector<std::string> runs;  // those that have not ended, then those that have; the newest first
    size_t at_work = 0;             // of these
    std::string lasting;            // what decides whether something has changed
  };

  void add_page(comm::http::Router& router);
  void add_api(comm::http::Router& router);
  void add_actions(comm::http::Router& router);
  comm::http::Response page(const comm::http::Request& request) const;
  comm::http::Response pool(const comm::http::Request& request);
  comm::http::Response history() const;
  comm::http::Response run(const comm::http::Request& request) const;
  std::shared_ptr<const Rendered> rendered();

  PoolView& view_;
  const comm::http::Router& router_;
  const std::string start_;  // distinguishes the versions of this process from those of another one
  std::mutex mutex_;
  std::shared_ptr<const Rendered> rendered_;  // guarded by mutex_
};

}  // namespace modelet::scheduler
