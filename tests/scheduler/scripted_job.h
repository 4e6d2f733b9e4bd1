// A job that does what a test wants, over a real group.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/codec/codec.h"
#include "node_agent/agent/job/job.h"

namespace modelet::testing_support {

using namespace std::chrono_literals;

inline constexpr int kRounds = 20;

// What all ranks of a run do.
struct Script {
  std::string fail_in_prepare, fail_in_run;  // on rank 1
  bool endless = false;
};

// Adds up ones over the group, round after round. At the end it writes a snapshot, as a run must.
class ScriptedJob final : public agent::Job {
 public:
  ScriptedJob(agent::TrainJob job, const Script& script) : job_(std::move(job)), script_(script) {}

  void prepare(const agent::EventSink&) override {
    if (job_.rank == 1 && !script_.fail_in_prepare.empty()) throw Error(script_.fail_in_prepare);
  }

  void run(comm::Group& group, const agent::EventSink& events,
           const agent::SnapshotSink& snapshots) override {
    for (uint64_t round = 0; script_.endless || round < kRounds; ++round) {
      float sums[2] = {1, stop_ ? 1.0f : 0.0f};
      group.all_reduce_sum({.step = round}, Matrix{sums, 1, 2, 2}, comm::codec_of(CodecKind::kNone));
      if (sums[0] != static_cast<float>(group.size())) throw Error("the sum is wrong");
      if (sums[1] > 0) {
        save(snapshots);
        throw Interrupted("stopped");
      }
      if (job_.rank == 1 && !script_.fail_in_run.empty()) throw Error(script_.fail_in_run);
      step_ = round + 1;
      if (job_.rank == 0 && round % 5 == 0) events({{"event", "progress"}, {"step", step_.load()}});
      if (script_.endless) std::this_thread::sleep_for(1ms);
    }
    save(snapshots);
    if (job_.rank == 0) events({{"event", "finished"}, {"steps", kRounds}});
  }

  void request_stop() override { stop_ = true; }
  uint64_t step() const override { return step_; }
  uint64_t memory_bytes() const override { return 1; }

 private:
  void save(const agent::SnapshotSink& snapshots) const {
    const std::string file = "part-" + std::to_string(job_.rank);
    std::filesystem::create_directories(job_.out);
    std::ofstream(job_.out / file) << step_;
    snapshots({.step = step_, .keep = true, .folder = job_.out, .files = {file}});
  }

  const agent::TrainJob job_;
  const Script script_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> step_{0};
};

}  // namespace modelet::testing_support
