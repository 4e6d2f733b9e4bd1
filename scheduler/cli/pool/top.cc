#include "scheduler/cli/pool/top.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/process.h"
#include "base/text/printable.h"
#include "scheduler/cli/pool/pool_options.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/terminal.h"
#include "scheduler/core/core.h"

namespace modelet::cli {
namespace {

using comm::control::NodeStatusT;
using comm::control::RunStatusT;

constexpr int kRefreshMilliseconds = 1000;
constexpr size_t kEndedRuns = 5;  // that are shown

// While it lives, the terminal shows a screen of its own, and keys arrive one by one.
class Screen {
 public:
  Screen() {
    is_input_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    if (is_input_) ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    std::cout << "\x1b[?1049h\x1b[?25l" << std::flush;
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() {
    std::cout << "\x1b[?25h\x1b[?1049l" << std::flush;
    if (is_input_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }

  // As many lines as fit, in place of those before.
  static void show(std::string_view text) {
    winsize size{};
    constexpr size_t kUsualRows = 24;
    const size_t rows =
        ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : kUsualRows;
    std::string screen = "\x1b[H";
    for (size_t row = 0; row < rows; ++row) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      screen += std::string(line) + "\x1b[K" + (row + 1 < rows ? "\r\n" : "");
    }
    std::cout << screen << "\x1b[J" << std::flush;
  }

  // Waits so long for a key. Whether the user wants to go.
  bool wants_to_go(int milliseconds) const {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(is_input_ ? &input : nullptr, is_input_ ? 1 : 0, milliseconds) <= 0) return false;
    char key = 0;
    constexpr char kEndOfInput = 4;  // Ctrl-D
    return ::read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q' || key == kEndOfInput;
  }

 private:
  bool is_input_ = false;
  termios before_{};
};

std::string milliseconds(double seconds) { return seconds > 0 ? fmt::format("{:.2f}", 1e3 * seconds) : "-"; }

std::string left_text(double seconds) {
  constexpr double kMinute = 60, kHour = 3600;
  if (seconds <= 0) return "-";
  if (seconds < kMinute) return fmt::format("{:.0f} s", seconds);
  return seconds < kHour ? fmt::format("{:.0f} min", seconds / kMinute)
                         : fmt::format("{:.1f} h", seconds / kHour);
}

std::string state_of_node(const NodeStatusT& node) {
  if (node.draining) return node.run == 0 ? "drained" : "draining";
  return node.run == 0 ? "free" : "training";
}

// "3 nodes: 1 free, 2 training".
std::string counted(const std::string& what, const std::map<std::string, size_t>& states) {
  size_t sum = 0;
  std::string list;
  for (const auto& [state, count] : states) {
    sum += count;
    list += fmt::format("{}{} {}", list.empty() ? ": " : ", ", count, state);
  }
  return fmt::format("{} {}{}{}", sum, what, sum == 1 ? "" : "s", list);
}

std::string runs_table(const std::vector<const RunStatusT*>& runs, size_t columns) {
  Table table({{"run", 9},
               {"name", 8, false, 10},
               {"state", 7, false},
               {"step", 6},
               {"of", 2},
               {"samples/s", 5},
               {"loss", 4},
               {"left", 3},
               {"nodes", 1},
               {"detail", 0, false, 20}});
  for (const RunStatusT* run : runs)
    table.add({std::to_string(run->run), run->name, scheduler::state_name(run->state),
               std::to_string(run->step), run->steps > 0 ? std::to_string(run->steps) : "-",
               run->samples_per_second > 0 ? fmt::format("{:.0f}", run->samples_per_second) : "-",
               run->loss > 0 ? fmt::format("{:.4f}", run->loss) : "-", left_text(run->seconds_left),
               std::to_string(run->node_names.size()), printable(run->detail)});
  return table.text(columns);
}

std::string nodes_table(const std::vector<const NodeStatusT*>& nodes, size_t columns) {
  Table table({{"node", 9, false, 12},
               {"state", 8, false},
               {"run", 7},
               {"step", 6},
               {"compute ms", 5},
               {"codec ms", 2},
               {"wait ms", 4},
               {"silent s", 3},
               {"cores", 1}});
  for (const NodeStatusT* node : nodes)
    table.add({node->name, state_of_node(*node), node->run == 0 ? "-" : std::to_string(node->run),
               node->run == 0 ? "-" : std::to_string(node->step), milliseconds(node->compute_seconds),
               milliseconds(node->codec_seconds), milliseconds(node->wait_seconds),
               fmt::format("{:.0f}", std::floor(node->silent_seconds)), std::to_string(node->cores)});
  return table.text(columns);
}

// Runs that have not ended come first, then the newest of the others.
std::string pool_text(PoolClient& client, const std::string& scheduler, size_t columns) {
  const auto nodes = client.nodes();
  const auto runs = client.list();
  std::map<std::string, size_t> node_states, run_states;
  std::vector<const NodeStatusT*> shown_nodes;
  for (const auto& node : nodes.nodes) {
    ++node_states[state_of_node(*node)];
    shown_nodes.push_back(node.get());
  }
  std::ranges::sort(shown_nodes, {}, &NodeStatusT::name);
  std::vector<const RunStatusT*> shown_runs, ended;
  for (auto run = runs.runs.rbegin(); run != runs.runs.rend(); ++run) {
    const bool has_ended = scheduler::has_ended((*run)->state);
    if (!has_ended) ++run_states[scheduler::state_name((*run)->state)];
    if (!has_ended)
      shown_runs.push_back(run->get());
    else if (ended.size() < kEndedRuns)
      ended.push_back(run->get());
  }
  shown_runs.insert(shown_runs.end(), ended.begin(), ended.end());
  const std::string time = utc_text(std::chrono::system_clock::now());
  constexpr size_t kClock = 11, kClockLength = 8;  // of an ISO 8601 time
  const std::string line = fmt::format("{}  {} UTC  {}  {}", scheduler, time.substr(kClock, kClockLength),
                                       counted("node", node_states), counted("run", run_states));
  return (columns == 0 ? line : fitted(line, columns)) + "\n\n" + runs_table(shown_runs, columns) + "\n" +
         nodes_table(shown_nodes, columns);
}

void top(const PoolOptions& options) {
  std::atomic<bool> stop{false};
  std::optional<Screen> screen;
  // While a scheduler that is away is waited for, keys and signals count as well.
  PoolClient client(options.address(), [&] {
    if (stop || (screen && screen->wants_to_go(0))) throw Interrupted("ended");
  });
  const Terminal terminal = terminal_of(STDOUT_FILENO);
  if (!terminal.there()) {  // nothing to refresh
    std::cout << pool_text(client, options.scheduler, 0);
    return;
  }
  std::string last =
      pool_text(client, options.scheduler, terminal.columns());  // errors come before the screen
  const StopSignals signals([&stop] { stop = true; });
  screen.emplace();
  for (std::string trouble; !stop;) {
    Screen::show(fitted(trouble.empty() ? "q: quit" : trouble, terminal.columns()) + "\n" + last);
    if (screen->wants_to_go(kRefreshMilliseconds)) return;
    try {
      last = pool_text(client, options.scheduler, terminal.columns());
      trouble.clear();
    } catch (const Interrupted&) {
      return;
    } catch (const Error& error) {  // a scheduler that is away may come back
      trouble = error.what();
    }
  }
}

}  // namespace

void add_top_verb(CLI::App& app) {
  add_verb(
      app, "top",
      "Show the nodes and runs of a pool, with rates, once a second; q ends it. Without a terminal, show them once",
      "  modelet top\n  modelet top --scheduler tcp://192.168.1.5:5570", std::make_shared<PoolOptions>(),
      top);
}

}  // namespace modelet::cli
