#include "tests/simulation/chain_workload.h"

#include <algorithm>
#include <cstring>

#include "tests/scheduler/core/submission.h"
#include "tests/simulation/chain_job.h"

namespace modelet::simulation {
namespace {

uint64_t hash_of(const std::string& text) {
  uint64_t hash = text.size();
  for (const char c : text) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

uint64_t contribution(uint32_t modelet, uint64_t state) { return mix64(state ^ mix64(modelet + 1)); }
uint64_t contribution_of_owner(const std::string& owner, uint64_t run_state) { return mix64(run_state ^ hash_of(owner)); }
uint32_t owners_per_round(const msg::PrepareT& prepare) {
  return parse_experiment(prepare.experiment, "test").cluster.owners_per_round;
}
agent::ReplicaSet participants(const std::string& run, uint64_t step, size_t owners, uint32_t count) {
  return agent::participants_of_round(hash_of(run), step, owners, count);
}
uint64_t next_modelet_state(uint64_t state, uint64_t total) { return mix64(state + 3 * total); }
uint64_t next_run_state(uint64_t state, uint64_t total) { return mix64(state ^ total); }

ChainState first_state(const std::string& run, size_t modelets) {
  ChainState state{.modelets = {}, .run = hash_of(run)};
  for (size_t i = 0; i < modelets; ++i) state.modelets.push_back(mix64(state.run + i));
  return state;
}

comm::ContentId content_of(uint64_t step, uint64_t file, uint64_t value) {
  const uint64_t words[4] = {value, step, file, mix64(value ^ step)};
  comm::ContentId content;
  std::memcpy(content.bytes.data(), words, sizeof(words));
  return content;
}

uint64_t value_in(const comm::ContentId& content) {
  uint64_t value = 0;
  std::memcpy(&value, content.bytes.data(), sizeof(value));
  return value;
}

std::string modelet_file(size_t modelet) { return fmt::format("modelet-{:05}.safetensors", modelet); }

msg::SubmitT ChainWorkload::submission(const std::string& name, RunSpec& spec, uint32_t nodes,
                                       uint32_t output_modelets, uint64_t kind) {
  constexpr uint64_t kOfTasks = 2;
  constexpr uint32_t kFewest = 2, kMore = 6;
  if (spec.may_have_tasks && kind % kKinds == kOfTasks)
    return scheduler::test::submission_of_tasks(kFewest + static_cast<uint32_t>(mix64(kind) % kMore), nodes, name,
                                                output_modelets);
  constexpr uint64_t kOfOwners = 3;
  if (nodes < kFewest || kind % kKinds != kOfOwners) return scheduler::test::submission(nodes, name, output_modelets);
  // Each of these nodes is an owner. All must be there, or two.
  msg::SubmitT submit = scheduler::test::submission(0, name, output_modelets);
  Experiment experiment = parse_experiment(submit.experiment, "test");
  experiment.data.train = "private:clinic";
  experiment.cluster.replicas = nodes;
  experiment.cluster.epoch_steps = 100;
  experiment.cluster.least_owners = mix64(kind) % 4 == 0 ? 0 : kFewest;
  experiment.cluster.owners_per_round = mix64(kind) % 3 == 0 ? kFewest : 0;
  submit.experiment = to_toml(experiment);
  return submit;
}

std::shared_ptr<Job> ChainWorkload::make_job(JobSurroundings around, const msg::PrepareT& prepare) {
  return std::make_shared<ChainJob>(std::move(around), prepare, *this);
}

void ChainWorkload::prepared(const msg::PrepareT& prepare) {
  names_[prepare.run] = prepare.name;
  const ChainState first = first_state(prepare.name, prepare.owner.size());
  if (!has_owners(prepare)) {
    truths_.insert({prepare.name, Course{.states = {first}}});
    return;
  }
  if (courses_.contains({prepare.run, prepare.epoch})) return;
  check_owners(prepare);
  Course course{.owners = prepare.node_names, .owners_per_round = owners_per_round(prepare), .first_step = 0, .states = {first}};
  if (prepare.snapshot != nullptr) {
    const comm::Snapshot from = msg::snapshot_of(*prepare.snapshot);
    course.first_step = from.step;
    course.states = {truth(prepare.run, from.epoch, from.step)};
  }
  courses_.insert({{prepare.run, prepare.epoch}, std::move(course)});
}

// A group has at least as many owners as the experiment says, and no others than those with which the run began.
void ChainWorkload::check_owners(const msg::PrepareT& prepare) {
  const auto& [known, is_new] =
      owners_.insert({prepare.run, {prepare.node_names.begin(), prepare.node_names.end()}});
  const std::set<std::string>& owners = known->second;
  const Experiment::Cluster cluster = parse_experiment(prepare.experiment, "test").cluster;
  const size_t least = cluster.least_owners == 0 ? owners.size() : cluster.least_owners;
  const bool are_owners = std::ranges::all_of(prepare.node_names, [&](const auto& name) { return owners.contains(name); });
  if (!are_owners || prepare.size < least || cluster.replicas != prepare.size)
    world_.violated(fmt::format("{}: the {} owners of epoch {} are not {} of those with which it began", prepare.name,
                                prepare.size, prepare.epoch, least));
}

const ChainState& ChainWorkload::truth(uint64_t run, uint32_t epoch, uint64_t step) {
  Course& known = course(run, epoch);
  if (step < known.first_step) {  // a snapshot of a step from which this group went on
    world_.violated(fmt::format("{}: step {} is said to be of epoch {}, which began with step {}", names_.at(run), step, epoch,
                                known.first_step));
    return known.states.front();
  }
  while (known.states.size() <= step - known.first_step) {
    ChainState next = known.states.back();
    uint64_t total = 0;
    const agent::ReplicaSet parts = participants(names_.at(run), known.first_step + known.states.size() - 1, known.owners.size(), known.owners_per_round);
    for (size_t rank = 0; rank < known.owners.size(); ++rank)
      if (parts[rank] != 0) total += contribution_of_owner(known.owners[rank], next.run);
    if (known.owners.empty())
      for (uint32_t i = 0; i < next.modelets.size(); ++i) total += contribution(i, next.modelets[i]);
    for (uint64_t& state : next.modelets) state = next_modelet_state(state, total);
    next.run = next_run_state(next.run, total);
    known.states.push_back(std::move(next));
  }
  return known.states[step - known.first_step];
}

Workload::Files ChainWorkload::files(uint64_t run, uint32_t epoch, uint64_t step) {
  const ChainState& state = truth(run, epoch, step);
  Files files{{kRunFile, content_of(step, kRunFileNumber, state.run)}};
  for (size_t i = 0; i < state.modelets.size(); ++i)
    files[modelet_file(i)] = content_of(step, i, state.modelets[i]);
  return files;
}

void ChainWorkload::stepped(const msg::PrepareT& group, uint64_t step,
                            const std::map<uint32_t, uint64_t>& modelets, uint64_t of_run) {
  const ChainState& right = truth(group.run, group.epoch, step);
  const bool agrees = right.run == of_run && std::ranges::all_of(modelets, [&](const auto& entry) {
                        return right.modelets[entry.first] == entry.second;
                      });
  if (!agrees)
    world_.violated(fmt::format("{}: the state after step {} is not the undisturbed run's", group.name, step));
}

}  // namespace modelet::simulation
