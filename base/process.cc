#include "base/process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>

#include "base/error.h"

namespace modelet {
namespace {

// A signal handler can reach nothing but globals.
std::function<void()> stop_function;
std::atomic<bool> stop_installed{false};
struct sigaction old_term, old_int;

void handle_signal(int) { stop_function(); }

}  // namespace

StopSignals::StopSignals(std::function<void()> stop, Again again) {
  MODELET_CHECK(!stop_installed.exchange(true), "one StopSignals at a time");
  stop_function = std::move(stop);
  struct sigaction action {};
  action.sa_handler = handle_signal;
  if (again == Again::kEndsProcess) action.sa_flags = SA_RESETHAND;
  ::sigaction(SIGTERM, &action, &old_term);
  ::sigaction(SIGINT, &action, &old_int);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGTERM, &old_term, nullptr);
  ::sigaction(SIGINT, &old_int, nullptr);
  stop_function = nullptr;
  stop_installed = false;
}

void exit_with_parent(int parent) {
  if (parent == 0) return;
  if (::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) throw Error(errno_text("prctl(PR_SET_PDEATHSIG)"));
  if (::getppid() != parent)
    throw Error("the parent process " + std::to_string(parent) + " has ended already");
}

}  // namespace modelet
