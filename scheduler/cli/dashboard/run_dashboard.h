// RunDashboard: the page of a pool for one run of this process: a server of its own, at an address with a token, so that
// other users of the machine cannot look. It ends with the object.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "scheduler/cli/dashboard/run_view.h"

namespace modelet::cli {

// Where the page listens if its user names no address: any free port.
inline constexpr const char* kDashboardAddress = "127.0.0.1:0";

class RunDashboard {
 public:
  // Serves from here on, on threads of its own. `listen`: ADDRESS:PORT. UsageError or Error if it cannot listen there.
  RunDashboard(const std::string& run, const std::string& listen);
  RunDashboard(const RunDashboard&) = delete;
  RunDashboard& operator=(const RunDashboard&) = delete;
  ~RunDashboard();

  RunView& view() { return view_; }
  // What a browser opens. Whoever knows it may look.
  std::string url() const;

 private:
  struct Served;

  RunView view_;
  const std::string token_;
  std::unique_ptr<Served> served_;
};

}  // namespace modelet::cli
