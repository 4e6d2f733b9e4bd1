#include "scheduler/client/pool_client.h"

#include <spdlog/fmt/fmt.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "scheduler/core/core.h"

namespace modelet::cli {
namespace {

using comm::control::RunState;
using comm::control::RunStatusT;

constexpr double kPollSeconds = 0.1;
constexpr double kSilenceSeconds = 10;  // of a scheduler that should send a status every second

// Reports how a run ended, unless an event of the run has said so already.
class EndReporter {
 public:
  explicit EndReporter(Reporter& reporter) : reporter_(reporter) {}

  void handle(const nlohmann::json& event) {
    last_ = text(event, "event");
    reporter_.handle(event);
  }

  // Reports once what a waiting run waits for.
  void note(const RunStatusT& status) {
    if (status.state != RunState::Queued || status.detail == waiting_for_) return;
    waiting_for_ = status.detail;
    reporter_.note(fmt::format("run {} {}", status.run, status.detail));
  }

  void end(const RunStatusT& status) {
    if (status.state == RunState::Failed) {
      if (last_ != "failed") reporter_.handle({{"event", "failed"}, {"error", status.detail}});
      const std::string why =
          fmt::format("run {} failed: {}{}", status.run, status.detail, reporter_.how_to_resume());
      if (status.user_error) throw UsageError(why);
      throw Error(why);
    }
    if (status.state == RunState::Stopped) {
      if (last_ != "interrupted") reporter_.handle({{"event", "interrupted"}, {"step", status.step}});
      reporter_.require_heard();
      throw Interrupted(fmt::format("run {}: {}{}", status.run, status.detail, reporter_.how_to_resume()));
    }
    reporter_.require_heard();
  }

 private:
  static std::string text(const nlohmann::json& event, const char* key) {
    const auto found = event.find(key);
    return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
  }

  Reporter& reporter_;
  std::string last_, waiting_for_;
};

}  // namespace

PoolClient::PoolClient(const comm::control::SchedulerAddress& scheduler)
    : scheduler_(scheduler.endpoint), socket_(scheduler) {}

// Tries again while the connection is being made.
void PoolClient::send(const comm::control::ToSchedulerMessage& message) {
  const Stopwatch watch;
  while (!socket_.send(message)) {
    if (watch.seconds() > kAnswerSeconds)
      throw Error(fmt::format("no scheduler answers at {}: {}", scheduler_,
                              socket_.trouble().empty()
                                  ? "is modelet-scheduler running there, and is the address right?"
                                  : socket_.trouble()));
    socket_.receive(kPollSeconds / 10);
  }
}

template <class Answer>
Answer PoolClient::ask(comm::control::ToSchedulerMessage question) {
  const Stopwatch watch;
  send(question);
  while (watch.seconds() < kAnswerSeconds) {
    auto message = socket_.receive(kPollSeconds);
    if (!message) continue;
    if (auto* answer = std::get_if<Answer>(&*message)) return std::move(*answer);
    if (const auto* refusal = std::get_if<comm::control::RefusedT>(&*message))
      throw Error("the scheduler refuses: " + refusal->reason);
  }
  throw Error(fmt::format(
      "the scheduler at {} did not answer within {:.0f} s; if it is of another release, its log says so",
      scheduler_, kAnswerSeconds));
}

uint64_t PoolClient::submit(const Submission& submission) {
  comm::control::SubmitT message;
  message.name = submission.name;
  message.experiment = to_toml(submission.experiment);
  const DataShape& shape = submission.shape;
  message.shape = std::make_unique<comm::control::ShapeT>();
  message.shape->features = shape.features;
  message.shape->labels = shape.labels;
  message.shape->train_rows = shape.train_rows;
  message.shape->test_rows = shape.test_rows;
  message.shape->features_per_row = shape.features_per_row;
  message.shape->labels_per_row = shape.labels_per_row;
  message.shape->encoder = shape.encoder;
  message.shape->fingerprint = shape.fingerprint;
  message.nodes = submission.nodes;
  message.wait = submission.wait;
  message.out = submission.out;
  message.resume = submission.resume;
  message.train_data = submission.train_data;
  message.test_data = submission.test_data;
  return ask<comm::control::AcceptedT>(std::move(message)).run;
}

comm::control::RunListT PoolClient::list() {
  return ask<comm::control::RunListT>(comm::control::ListRunsT{});
}

comm::control::NodeListT PoolClient::nodes() {
  return ask<comm::control::NodeListT>(comm::control::ListNodesT{});
}

uint16_t PoolClient::data_port() {
  return ask<comm::control::DataPortT>(comm::control::FindDataPortT{}).port;
}

RunStatusT PoolClient::stop(uint64_t run) { return ask<RunStatusT>(comm::control::StopRunT{{}, run}); }

RunStatusT PoolClient::watch(uint64_t run, const Watcher& watcher) {
  send(comm::control::WatchT{{}, run});
  RunStatusT last;
  for (Stopwatch silence; silence.seconds() < kSilenceSeconds;) {
    if (watcher.detach && watcher.detach()) return last;
    auto message = socket_.receive(kPollSeconds);
    if (!message) continue;
    silence.lap();
    if (const auto* refusal = std::get_if<comm::control::RefusedT>(&*message))
      throw Error("the scheduler refuses: " + refusal->reason);
    if (const auto* event = std::get_if<comm::control::RunEventT>(&*message);
        event != nullptr && event->run == run) {
      const auto parsed = nlohmann::json::parse(event->json, nullptr, false);
      if (parsed.is_object() && watcher.on_event) watcher.on_event(parsed);
    }
    if (auto* status = std::get_if<RunStatusT>(&*message); status != nullptr && status->run == run) {
      if (watcher.on_status) watcher.on_status(*status);
      last = std::move(*status);
      if (scheduler::has_ended(last.state)) return last;
    }
  }
  throw Error(fmt::format("the scheduler at {} has been silent for {:.0f} s while run {} was watched",
                          scheduler_, kSilenceSeconds, run));
}

void run_on_pool(const comm::control::SchedulerAddress& scheduler, const Submission& submission,
                 Reporter& reporter, const std::atomic<bool>& stop, const std::function<void()>& check_pool) {
  PoolClient client(scheduler), stopper(scheduler);
  const uint64_t run = client.submit(submission);
  EndReporter end(reporter);
  bool stop_sent = false, waiting = true;
  const PoolClient::Watcher watcher{
      .on_event = [&](const nlohmann::json& event) { end.handle(event); },
      .on_status =
          [&](const RunStatusT& status) {
            waiting = status.state == RunState::Queued;
            end.note(status);
          },
      .detach =
          [&] {
            if (waiting && check_pool) check_pool();
            if ((stop || !reporter.failure().empty()) && !std::exchange(stop_sent, true)) stopper.stop(run);
            return false;
          }};
  end.end(client.watch(run, watcher));
}

void watch_on_pool(const comm::control::SchedulerAddress& scheduler, uint64_t run, Reporter& reporter,
                   const std::atomic<bool>& stop) {
  PoolClient client(scheduler);
  EndReporter end(reporter);
  const RunStatusT last =
      client.watch(run, {.on_event = [&](const nlohmann::json& event) { end.handle(event); },
                         .on_status = [&](const RunStatusT& status) { end.note(status); },
                         .detach = [&] { return stop || !reporter.failure().empty(); }});
  if (scheduler::has_ended(last.state)) return end.end(last);
  const std::string goes_on =
      fmt::format("no longer watched; run {} goes on: modelet stop {} ends it", run, run);
  if (!reporter.failure().empty()) throw Error(reporter.failure() + "; " + goes_on);
  throw Interrupted(goes_on);
}

}  // namespace modelet::cli
