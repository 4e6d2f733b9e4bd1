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
  return scheduler::test::submission(nodes, name, output_modelets);
}

std::shared_ptr<Job> ChainWorkload::make_job(JobSurroundings around, const msg::PrepareT& prepare) {
  return std::make_shared<ChainJob>(std::move(around), prepare, *this);
}

void ChainWorkload::prepared(const msg::PrepareT& prepare) {
  names_[prepare.run] = prepare.name;
  auto& states = truths_[prepare.name];
  if (states.empty()) states.push_back(first_state(prepare.name, prepare.owner.size()));
}

const ChainState& ChainWorkload::truth(const std::string& run, uint64_t step) {
  std::vector<ChainState>& states = truths_.at(run);
  while (states.size() <= step) {
    ChainState next = states.back();
    uint64_t total = 0;
    for (uint32_t i = 0; i < next.modelets.size(); ++i) total += contribution(i, next.modelets[i]);
    for (uint64_t& state : next.modelets) state = next_modelet_state(state, total);
    next.run = next_run_state(next.run, total);
    states.push_back(std::move(next));
  }
  return states[step];
}

Workload::Files ChainWorkload::files(uint64_t run, uint32_t, uint64_t step) {
  const ChainState& state = truth(names_.at(run), step);
  Files files{{kRunFile, content_of(step, kRunFileNumber, state.run)}};
  for (size_t i = 0; i < state.modelets.size(); ++i)
    files[modelet_file(i)] = content_of(step, i, state.modelets[i]);
  return files;
}

void ChainWorkload::stepped(const std::string& run, uint64_t step,
                            const std::map<uint32_t, uint64_t>& modelets, uint64_t of_run) {
  const ChainState& right = truth(run, step);
  const bool agrees = right.run == of_run && std::ranges::all_of(modelets, [&](const auto& entry) {
                        return right.modelets[entry.first] == entry.second;
                      });
  if (!agrees)
    world_.violated(fmt::format("{}: the state after step {} is not the undisturbed run's", run, step));
}

}  // namespace modelet::simulation
