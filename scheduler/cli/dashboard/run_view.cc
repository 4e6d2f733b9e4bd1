#include "scheduler/cli/dashboard/run_view.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/core/run/run.h"
#include "scheduler/ledger/ledger.h"

namespace modelet::cli {
namespace {

using comm::control::NodeStatusT;
using comm::control::RunState;
using comm::control::RunStatusT;
using nlohmann::json;
using scheduler::kMostEventBytes;
using scheduler::kMostLedgerEvents;

constexpr double kShownFor = 0.5;                  // seconds for which a state is good enough
constexpr size_t kAnswerBytes = 256 << 10;         // of events in one answer
constexpr const char* kOnlyNode = "this process";  // until its events name the node

double number_in(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : 0;
}

uint64_t count_in(const json& event, const char* key) {
  const double number = number_in(event, key);
  return number > 0 && number < 1e18 ? static_cast<uint64_t>(number) : 0;
}

std::string words_in(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

RunView::RunView(const std::string& name) : begun_(clock_.now()) {
  const std::string now = utc_text(std::chrono::system_clock::now());
  state_.facts.started = now;
  state_.facts.keeps_state = true;  // its log is in its folder
  RunStatusT& run = state_.runs.emplace_back();
  run.run = kRun;
  run.name = name;
  run.state = RunState::Forming;
  run.submitted = now;
  run.epoch = 1;
}

void RunView::set_experiment(std::string toml) {
  const std::lock_guard lock(mutex_);
  experiment_ = std::move(toml);
}

void RunView::set_placement(uint64_t modelets, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  placed_ = {kOnlyNode, modelets, bytes};
}

void RunView::add(const json& event) {
  if (!event.is_object()) return;
  const std::lock_guard lock(mutex_);
  keep(event);
  follow(event);
  shown_.reset();
}

void RunView::keep(const json& event) {
  std::string line = event.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  if (started_.empty() && words_in(event, "event") == "started") started_ = line;
  bytes_ += line.size();
  events_.push_back({next_++, std::move(line)});
  while (events_.size() > kMostLedgerEvents || bytes_ > kMostEventBytes) {
    bytes_ -= events_.front().line.size();
    events_.pop_front();
  }
}

void RunView::follow(const json& event) {
  RunStatusT& run = state_.runs.front();
  const std::string kind = words_in(event, "event");
  if (kind == "started") {
    run.state = RunState::Running;
    run.detail.clear();
    run.step = count_in(event, "step");
    run.steps = count_in(event, "steps");
    threads_ = static_cast<uint32_t>(count_in(event, "threads"));
    if (count_in(event, "nodes") == 1 && state_.nodes.empty())
      set_nodes(json::array({json{{"node", kOnlyNode}}}));
  } else if (kind == "progress") {
    follow_progress(event);
  } else if (kind == "checkpoint") {
    run.stable_step = count_in(event, "step");
  } else if (kind == "regrouped") {
    ++run.recoveries;
    run.epoch = count_in(event, "epoch");
    json nodes = json::array();
    if (const auto names = event.find("nodes"); names != event.end() && names->is_array())
      for (const json& name : *names)
        if (name.is_string()) nodes.push_back({{"node", name}});
    set_nodes(nodes);
  } else if (kind == "replanned") {
    ++run.replans;
  } else if (kind == "finished") {
    run.step = std::max(run.step, count_in(event, "steps"));
    end(RunState::Finished, "");
  } else if (kind == "interrupted") {
    end(RunState::Stopped, "");
  } else if (kind == "failed") {
    end(RunState::Failed, words_in(event, "error"));
  }
}

void RunView::follow_progress(const json& event) {
  RunStatusT& run = state_.runs.front();
  run.step = count_in(event, "step");
  run.steps = count_in(event, "steps");
  run.loss = number_in(event, "loss");
  run.samples_per_second = number_in(event, "samples_per_second");
  run.bytes_per_step = number_in(event, "bytes_sent_per_node_per_step");
  run.seconds_left = number_in(event, "eta_seconds");
  if (const auto nodes = event.find("nodes"); nodes != event.end() && nodes->is_array()) set_nodes(*nodes);
  for (NodeStatusT& node : state_.nodes) node.step = run.step;
  history_.add(Seconds(std::chrono::system_clock::now().time_since_epoch()).count(), state_.nodes);
}

void RunView::set_nodes(const json& nodes) {
  std::vector<NodeStatusT> now;
  RunStatusT& run = state_.runs.front();
  run.node_names.clear();
  for (const json& each : nodes) {
    if (!each.is_object()) continue;
    NodeStatusT node;
    node.name = words_in(each, "node");
    node.cores = threads_;
    node.run = kRun;
    node.state = comm::control::NodeState::Training;
    node.step = run.step;
    node.compute_seconds = number_in(each, "compute_seconds");
    node.codec_seconds = number_in(each, "codec_seconds");
    node.wait_seconds = number_in(each, "wait_seconds");
    const double step_seconds = node.compute_seconds + node.codec_seconds + node.wait_seconds;
    node.wait_share = step_seconds > 0 ? node.wait_seconds / step_seconds : 0;
    run.node_names.push_back(node.name);
    now.push_back(std::move(node));
  }
  if (now.size() == 1) placed_.node = now.front().name;
  state_.nodes = std::move(now);
}

void RunView::end(RunState state, std::string detail) {
  RunStatusT& run = state_.runs.front();
  run.state = state;
  run.detail = std::move(detail);
  run.seconds_left = 0;
  ended_ = clock_.now();
}

std::shared_ptr<const scheduler::PoolState> RunView::pool() {
  const std::lock_guard lock(mutex_);
  looked_at_ = clock_.now();
  if (shown_ && clock_.now() < shown_at_ + kShownFor) return shown_;
  shown_at_ = clock_.now();
  state_.now = utc_text(std::chrono::system_clock::now());
  state_.runs.front().seconds = (ended_ < 0 ? shown_at_ : ended_) - begun_;
  return shown_ = std::make_shared<scheduler::PoolState>(state_);
}

void RunView::wait_until_seen(std::chrono::milliseconds most) {
  constexpr double kRecent = 3;  // seconds; a page in front looks once a second
  std::unique_lock lock(mutex_);
  if (ended_ < 0 || looked_at_ < 0 || clock_.now() > looked_at_ + kRecent) return;
  seen_.wait_for(lock, most, [this] { return end_was_seen_; });
}

scheduler::NodeHistory RunView::history() { return history_.get(); }

void RunView::require_run(uint64_t run) {
  if (run != kRun)
    throw scheduler::NotThere(fmt::format("there is no run {}: this page shows run {} alone", run, kRun));
}

scheduler::RunDetails RunView::run(uint64_t run) {
  require_run(run);
  const auto state = pool();
  const std::lock_guard lock(mutex_);
  scheduler::RunDetails details{.status = state->runs.front(), .experiment = experiment_, .placement = {}};
  if (placed_.modelets > 0) details.placement.push_back(placed_);
  return details;
}

comm::control::RunLogT RunView::events(uint64_t run, uint64_t after) {
  require_run(run);
  const std::lock_guard lock(mutex_);
  comm::control::RunLogT log;
  log.run = run;
  log.next = after;
  // The figures of the beginning are in this event alone.
  if (after == 0 && !events_.empty() && events_.front().number > 1) log.text = started_;
  auto event = std::ranges::upper_bound(events_, after, {}, &Kept::number);
  for (; event != events_.end() && log.text.size() < kAnswerBytes; ++event) {
    log.text += event->line;
    log.next = event->number;
  }
  log.complete = ended_ >= 0 && event == events_.end();
  if (log.complete) {
    end_was_seen_ = true;
    seen_.notify_all();
  }
  return log;
}

comm::control::RunLogT RunView::log(uint64_t run, const std::string& node, uint64_t) {
  require_run(run);
  throw scheduler::NotThere(
      fmt::format("this page has no log of '{}': what its run says goes to the terminal", node));
}

void RunView::drain(const comm::http::Token*, const std::string&, bool) {
  throw UsageError("the nodes of this run belong to no pool: nothing can be drained");
}

void RunView::stop(const comm::http::Token*, uint64_t) {
  throw UsageError("press Ctrl-C where the run was started");
}

}  // namespace modelet::cli
