#include "scheduler/cli/dashboard/run_dashboard.h"

#include <spdlog/fmt/fmt.h>

#include "comm/http/router.h"
#include "comm/http/server.h"
#include "comm/security/keys.h"
#include "scheduler/dashboard/dashboard.h"

namespace modelet::cli {

struct RunDashboard::Served {
  Served(RunView& view, const std::string& token, const comm::http::ServerOptions& options)
      : router({{.secret = token, .may_act = false, .name = "dashboard"}}),
        dashboard(view, router),
        server(router, options) {}

  comm::http::Router router;
  scheduler::Dashboard dashboard;
  comm::http::Server server;
};

// A secret key is a random text that nobody can guess, and nothing else is needed of a token.
RunDashboard::RunDashboard(const std::string& run, const std::string& listen)
    : view_(run), token_(comm::make_key_pair().secret_key) {
  constexpr size_t kConnections = 64, kBodyBytes = 4096;
  served_ = std::make_unique<Served>(view_, token_,
                                     comm::http::ServerOptions{.listen = listen,
                                                               .listen_option = "--dashboard",
                                                               .connections = kConnections,
                                                               .body_bytes = kBodyBytes});
}

RunDashboard::~RunDashboard() {
  constexpr std::chrono::milliseconds kLastLook{2500};
  view_.wait_until_seen(kLastLook);
}

std::string RunDashboard::url() const {
  return fmt::format("{}/?token={}#/runs/{}", served_->server.endpoint(), token_, RunView::kRun);
}

}  // namespace modelet::cli
