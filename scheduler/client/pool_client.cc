#include "scheduler/client/pool_client.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/text/strict_json.h"
#include "comm/control/shape_tables.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/core/core.h"

namespace modelet::cli {
namespace {

using comm::control::RunStatusT;

constexpr double kPollSeconds = 0.1;
constexpr double kSilenceSeconds = 10;  // of a scheduler that should send a status every second

// A submission that was sent twice is answered twice, so an answer may belong to an earlier one.
template <class Response>
bool is_response_to(const comm::control::ToSchedulerMessage& request, const Response& response) {
  if constexpr (std::is_same_v<Response, comm::control::AcceptedT>)
    return response.token == std::get<comm::control::SubmitT>(request).token;
  return true;
}

uint64_t new_token() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // never 0
}

// Calls `use(number, event)` for the events of a run after number `after`, until it returns false.
template <class Use>
void read_log(PoolClient& client, uint64_t run, uint64_t after, const Use& use) {
  for (;;) {
    const comm::control::RunLogT log = client.log(run, "", after);
    const auto lines = static_cast<uint64_t>(std::ranges::count(log.text, '\n'));
    if (log.next <= after || lines > log.next) return;
    uint64_t number = log.next - lines;  // the number before the first line: older ones may be gone
    std::istringstream text(log.text);
    for (std::string line; std::getline(text, line);) {
      auto event = parse_json_object(line);
      if (++number > after && event && !use(number, std::move(*event))) return;
    }
    after = log.next;
  }
}

}  // namespace

PoolClient::PoolClient(const comm::control::SchedulerAddress& scheduler, std::function<void()> check)
    : address_(scheduler), scheduler_(scheduler.endpoint), check_(std::move(check)), socket_(scheduler) {}

// Tries again as long as the connection is being made.
void PoolClient::send(const comm::control::ToSchedulerMessage& message, double seconds) {
  const Stopwatch watch;
  while (!socket_.send(message)) {
    if (watch.seconds() > seconds)
      throw Error(fmt::format("no scheduler answers at {}: {}", scheduler_,
                              socket_.trouble().empty()
                                  ? "is modelet-scheduler running there, and is the address right?"
                                  : socket_.trouble()));
    if (check_) check_();
    socket_.receive(kPollSeconds / 10);
  }
}

// Asks again over a new connection, because the question or its answer may have been lost with the former one.
// A submission that arrives twice is one run (its token).
template <class Response>
Response PoolClient::ask(const comm::control::ToSchedulerMessage& request, double seconds) {
  const Stopwatch watch;
  while (socket_.receive(0)) {
  }
  send(request, seconds);
  uint64_t connection = socket_.connections();
  while (watch.seconds() < seconds) {
    if (check_) check_();
    auto message = socket_.receive(kPollSeconds);
    const uint64_t former = std::exchange(connection, socket_.connections());
    if (message) {
      if (auto* response = std::get_if<Response>(&*message);
          response != nullptr && is_response_to(request, *response))
        return std::move(*response);
      if (const auto* refusal = std::get_if<comm::control::RefusedT>(&*message))
        throw Error("the scheduler refuses: " + refusal->reason);
    }
    if (former == 0 || connection == former) continue;
    if (std::holds_alternative<comm::control::SubmitT>(request))
      send(comm::control::FindDataPortT{}, seconds);  // small
    send(request, seconds);
    connection = socket_.connections();
  }
  throw Error(fmt::format(
      "the scheduler at {} did not answer within {:.0f} s; if it is of another release, its log says so{}",
      scheduler_, seconds,
      std::holds_alternative<comm::control::SubmitT>(request)
          ? ". It may have accepted the run: modelet list shows its runs"
          : ""));
}

uint64_t PoolClient::submit(const Submission& submission) {
  comm::control::SubmitT message;
  message.name = submission.name;
  message.experiment = to_toml(submission.experiment);
  message.shape = comm::control::to_table(submission.shape);
  message.nodes = submission.nodes;
  message.wait = submission.wait;
  message.train_data = submission.train_data;
  message.test_data = submission.test_data;
  message.priority = submission.priority;
  message.token = new_token();
  message.division = submission.division;
  message.tasks = submission.tasks;
  if (submission.resume_files) message.resume_files = comm::control::to_table(*submission.resume_files);
  for (const comm::Snapshot& of_task : submission.resume_tasks)
    message.resume_tasks.push_back(comm::control::to_table(of_task));
  if (submission.resume_files || !submission.resume_tasks.empty())
    data_port();  // the first message of a connection must be small (kMaxFirstMessage)
  return ask<comm::control::AcceptedT>(std::move(message)).run;
}

comm::control::RunListT PoolClient::list() {
  return ask<comm::control::RunListT>(comm::control::ListRunsT{});
}

comm::control::NodeListT PoolClient::nodes(bool all) {
  return ask<comm::control::NodeListT>(comm::control::ListNodesT{{}, all});
}

comm::control::NodeListT PoolClient::approve(const std::string& node) {
  return ask<comm::control::NodeListT>(comm::control::ApproveNodeT{{}, node});
}

uint16_t PoolClient::data_port() {
  return ask<comm::control::DataPortT>(comm::control::FindDataPortT{}).port;
}

RunStatusT PoolClient::stop(uint64_t run) { return ask<RunStatusT>(comm::control::StopRunT{{}, run}); }

RunStatusT PoolClient::trace(uint64_t run, uint32_t steps) {
  return ask<RunStatusT>(comm::control::TraceRunT{{}, run, steps});
}

comm::control::RunFilesT PoolClient::files(uint64_t run) {
  return ask<comm::control::RunFilesT>(comm::control::FindRunFilesT{{}, run});
}

comm::control::RunLogT PoolClient::log(uint64_t run, const std::string& node, uint64_t offset,
                                       double patience) {
  return ask<comm::control::RunLogT>(comm::control::FindRunLogT{{}, run, node, offset}, patience);
}

comm::control::NodeListT PoolClient::drain(const std::string& node, bool drain) {
  return ask<comm::control::NodeListT>(comm::control::DrainNodeT{{}, node, drain});
}

std::vector<nlohmann::json> PoolClient::past_events(uint64_t run) {
  std::vector<nlohmann::json> events;
  read_log(*this, run, 0, [&](uint64_t, nlohmann::json event) {
    events.push_back(std::move(event));
    return true;
  });
  return events;
}

// Passes on the events between `after` and `before`. It asks over a second connection, because events of the
// run are arriving on the first.
void PoolClient::replay_missed(uint64_t run, uint64_t after, uint64_t before, const Watcher& watcher) const {
  const auto stops = [&watcher] { return watcher.stop && watcher.stop(); };
  try {
    PoolClient client(address_, [&, knows = stops()] {
      if (!knows && stops()) throw Interrupted("the run is to stop first");
    });
    read_log(client, run, after, [&](uint64_t number, const nlohmann::json& event) {
      if (number < before && watcher.on_event) watcher.on_event(event);
      return number + 1 < before;
    });
  } catch (const Error& error) {
    if (watcher.on_trouble) watcher.on_trouble(fmt::format("some events are missing: {}", error.what()));
  }
}

RunStatusT PoolClient::watch(uint64_t run, const Watcher& watcher, double patience) {
  send(comm::control::WatchT{{}, run});
  RunStatusT last;
  uint64_t connection = socket_.connections(), last_event = 0;
  bool asked = true, stopping = false, away = false;
  for (Stopwatch silence, since_request;;) {
    if (watcher.detach && watcher.detach()) return last;
    if (check_) check_();
    auto message = socket_.receive(kPollSeconds);
    // After a reconnect the scheduler knows nothing of what was asked before. A silent connection may be a
    // dead one.
    if (std::exchange(connection, socket_.connections()) != socket_.connections() ||
        (silence.seconds() > kSilenceSeconds && since_request.seconds() > kSilenceSeconds))
      asked = stopping = false;
    if (!asked && socket_.send(comm::control::WatchT{{}, run})) {
      asked = true;
      since_request.lap();
    }
    if (asked && !stopping && watcher.stop && watcher.stop())
      stopping = socket_.send(comm::control::StopRunT{{}, run});
    if (!message) {
      if (silence.seconds() > patience)
        throw Error(fmt::format(
            "the scheduler at {} has been away for {:.0f} s while run {} was watched. The run may go on: when the "
            "scheduler is back, modelet watch {} --scheduler {} follows it",
            scheduler_, patience, run, run, scheduler_));
      if (silence.seconds() > std::min(kSilenceSeconds, patience) && !std::exchange(away, true) &&
          watcher.on_trouble)
        watcher.on_trouble(fmt::format("the scheduler at {} is silent: waits for it", scheduler_));
      continue;
    }
    silence.lap();
    if (std::exchange(away, false) && watcher.on_trouble) watcher.on_trouble("the scheduler is back");
    if (const auto* refusal = std::get_if<comm::control::RefusedT>(&*message))
      throw Error("the scheduler refuses: " + refusal->reason);
    if (const auto* event = std::get_if<comm::control::RunEventT>(&*message);
        event != nullptr && event->run == run) {
      if (event->number != 0 && event->number <= last_event)
        continue;  // was passed on before the scheduler went away
      if (event->number > last_event + 1 && (last_event > 0 || watcher.whole))
        replay_missed(run, last_event, event->number, watcher);
      last_event = std::max(last_event, event->number);
      const auto parsed = parse_json_object(event->json);
      if (parsed && watcher.on_event) watcher.on_event(*parsed);
    }
    if (auto* status = std::get_if<RunStatusT>(&*message); status != nullptr && status->run == run) {
      if (watcher.on_status) watcher.on_status(*status);
      last = std::move(*status);
      if (scheduler::has_ended(last.state)) return last;
    }
  }
}

}  // namespace modelet::cli
