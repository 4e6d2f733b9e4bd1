#include "scheduler/server/served_pool.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/system/log.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

constexpr double kStateSeconds = 0.5;  // for which a state is good enough
constexpr double kStoreSeconds = 30;   // for which the size of the store is

std::string utc_now() { return utc_text(std::chrono::system_clock::now()); }

comm::Identity page_identity(const comm::http::Token* by) {
  return {comm::Role::kAdmin, by == nullptr ? "the page" : by->name + ", on the page"};
}

}  // namespace

ServedPool::ServedPool(bool keeps_state, std::filesystem::path store, uint64_t store_most_bytes)
    : keeps_state_(keeps_state),
      store_(std::move(store)),
      store_most_bytes_(store_.empty() ? 0 : store_most_bytes),
      started_(utc_now()) {}

void ServedPool::observe(const Core& core) {
  const Seconds time = std::chrono::system_clock::now().time_since_epoch();
  history_.add(time.count(), core.nodes());
}

template <class Answer>
Answer ServedPool::look_for(msg::ToSchedulerMessage question) {
  msg::FromSchedulerMessage answer = server_->ask(page_identity(nullptr), std::move(question));
  if (auto* found = std::get_if<Answer>(&answer)) return std::move(*found);
  if (const auto* refused = std::get_if<msg::RefusedT>(&answer)) throw NotThere(refused->reason);
  throw Error("the scheduler has answered another question");
}

std::shared_ptr<const PoolState> ServedPool::pool() {
  const std::lock_guard lock(mutex_);
  if (state_ && clock_.now() < state_at_ + kStateSeconds) return state_;
  state_ = make_state();
  state_at_ = clock_.now();
  return state_;
}

std::shared_ptr<const PoolState> ServedPool::make_state() {
  auto state = std::make_shared<PoolState>();
  const auto counts = server_->look<Core::Counts>([](const Core& core) { return core.counts(); });
  state->facts = {.address = server_->endpoint(),
                  .started = started_,
                  .keeps_state = keeps_state_,
                  .can_act = true,
                  .losses = counts.losses,
                  .refused = counts.refused,
                  .refused_keys = counts.refused_keys,
                  .errors = counts.errors,
                  .store_bytes = store_bytes(),
                  .store_most_bytes = store_most_bytes_};
  for (auto& node : look_for<msg::NodeListT>(msg::ListNodesT{{}, true}).nodes)
    state->nodes.push_back(std::move(*node));
  for (auto& run : look_for<msg::RunListT>(msg::ListRunsT{}).runs) state->runs.push_back(std::move(*run));
  std::ranges::sort(state->runs, {}, &msg::RunStatusT::run);
  state->now = utc_now();
  return state;
}

uint64_t ServedPool::store_bytes() {
  if (store_.empty()) return 0;
  if (store_measured_at_ > 0 && clock_.now() < store_measured_at_ + kStoreSeconds) return store_bytes_;
  store_bytes_ = 0;
  std::error_code failure;  // files come and go meanwhile
  for (std::filesystem::directory_iterator file(store_, failure), end; !failure && file != end;
       file.increment(failure)) {
    std::error_code gone;
    if (const auto bytes = file->file_size(gone); !gone) store_bytes_ += bytes;
  }
  store_measured_at_ = clock_.now();
  return store_bytes_;
}

RunDetails ServedPool::run(uint64_t run) {
  RunDetails details;
  details.experiment = look_for<msg::RunFilesT>(msg::FindRunFilesT{{}, run}).experiment;
  using Found = std::pair<std::optional<msg::RunStatusT>, std::vector<Run::Share>>;
  auto [status, shares] = server_->look<Found>([run](const Core& core) {
    Found found;
    for (msg::RunStatusT& each : core.runs())
      if (each.run == run) found.first = std::move(each);
    found.second = core.placement(run);
    return found;
  });
  if (!status) throw NotThere(fmt::format("there is no run {}", run));
  details.status = std::move(*status);
  for (Run::Share& share : shares)
    details.placement.push_back({std::move(share.node), share.modelets, share.bytes});
  return details;
}

msg::RunLogT ServedPool::events(uint64_t run, uint64_t after) {
  return look_for<msg::RunLogT>(msg::FindRunLogT{{}, run, "", after});
}

msg::RunLogT ServedPool::log(uint64_t run, const std::string& node, uint64_t after) {
  return look_for<msg::RunLogT>(msg::FindRunLogT{{}, run, node, after});
}

void ServedPool::act(const comm::http::Token* by, msg::ToSchedulerMessage message, const std::string& what) {
  const msg::FromSchedulerMessage answer = server_->ask(page_identity(by), std::move(message));
  if (const auto* refused = std::get_if<msg::RefusedT>(&answer)) throw UsageError(refused->reason);
  log_info("{}{}", what,
           by == nullptr ? ", from the page" : " with the token of '" + by->name + "', from the page");
  const std::lock_guard lock(mutex_);
  state_.reset();  // whoever acted sees what follows from it
}

void ServedPool::drain(const comm::http::Token* by, const std::string& node, bool drain) {
  act(by, msg::DrainNodeT{{}, node, drain},
      fmt::format("node '{}' was {}", node, drain ? "drained" : "undrained"));
}

void ServedPool::stop(const comm::http::Token* by, uint64_t run) {
  act(by, msg::StopRunT{{}, run}, fmt::format("run {} was stopped", run));
}

}  // namespace modelet::scheduler
