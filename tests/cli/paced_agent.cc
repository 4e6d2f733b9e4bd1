// The agent program with real training and made-up step times: each modelet that a node holds takes a fixed
// time. So what the scheduler concludes about slow nodes does not depend on how busy the machine is.
#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/system/log.h"
#include "base/system/process.h"
#include "base/system/program.h"
#include "node_agent/agent/agent.h"

namespace {

using modelet::agent::EventSink;
using modelet::agent::TrainJob;
using nlohmann::json;
using namespace std::chrono_literals;

constexpr double kEndless = 1e6;  // seconds left: a new plan always pays off

// The event in which rank 0 reports the times of the nodes, with the given paces of all nodes instead of the
// measured times.
json with_paces(json event, const std::vector<size_t>& modelets, const std::map<std::string, double>& paces) {
  if (event.value("event", "") != "progress" || !event.contains("nodes")) return event;
  event["eta_seconds"] = kEndless;
  for (size_t rank = 0; rank < event["nodes"].size(); ++rank) {
    json& node = event["nodes"][rank];
    node["compute_seconds"] = paces.at(node.at("node")) * static_cast<double>(modelets.at(rank));
  }
  return event;
}

class PacedJob final : public modelet::agent::Job {
 public:
  // A run that does not go on from a checkpoint stands still after `hold_after` reports until it is asked to
  // stop, for a minute at most. Otherwise a short run could end before the scheduler has made a new plan.
  PacedJob(TrainJob job, std::map<std::string, double> paces, size_t hold_after)
      : paces_(std::move(paces)),
        modelets_(static_cast<size_t>(job.size)),
        hold_after_(job.resume.empty() ? hold_after : std::numeric_limits<size_t>::max()) {
    for (const uint32_t rank : job.owner) ++modelets_[rank];
    job_ = modelet::agent::training_jobs(modelet::agent::DataRoots({"/"}))(std::move(job));
  }
  void prepare(const EventSink& events) override { job_->prepare(events); }
  void run(modelet::comm::Group& group, const EventSink& events,
           const modelet::agent::SnapshotSink& snapshots) override {
    const auto hold = [&](const json& event) {
      events(with_paces(event, modelets_, paces_));
      if (event.value("event", "") == "progress" && event.contains("nodes") && ++reports_ >= hold_after_)
        for (int tenths = 0; tenths < 600 && !stop_requested_; ++tenths) std::this_thread::sleep_for(100ms);
    };
    job_->run(group, hold, snapshots);
  }
  void request_stop() override {
    job_->request_stop();
    stop_requested_ = true;
  }
  void request_trace(uint32_t steps) override { job_->request_trace(steps); }
  uint64_t step() const override { return job_->step(); }
  uint64_t memory_bytes() const override { return job_->memory_bytes(); }

 private:
  const std::map<std::string, double> paces_;
  std::vector<size_t> modelets_;  // [ranks]
  const size_t hold_after_;
  size_t reports_ = 0;
  std::atomic<bool> stop_requested_ = false;
  std::unique_ptr<modelet::agent::Job> job_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("An agent whose step times are given.", "paced-agent");
  std::string paces;
  size_t hold_after = std::numeric_limits<size_t>::max();
  modelet::agent::AgentOptions options{
      .cores = 1, .memory_bytes = uint64_t{1} << 30, .gflops = 10, .memory_gbps = 5, .insecure = true};
  options.make_job = [&](TrainJob job) {
    return std::make_unique<PacedJob>(std::move(job), json::parse(paces), hold_after);
  };
  app.add_option("--scheduler", options.scheduler.endpoint);
  app.add_option("--name", options.name);
  app.add_option("--gflops", options.gflops);
  app.add_option("--memory-gbps", options.memory_gbps);
  app.add_option("--work-dir", options.work_dir);
  app.add_option("--pace", paces, "JSON object: seconds a modelet of every node");
  app.add_option("--hold-after", hold_after,
                 "a new run stands still after so many reports until it is asked to stop");
  return modelet::run_program(app, argc, argv, [&] {
    modelet::start_logging("paced-agent");
    options.bf16_gflops = options.gflops;
    options.cache.folder = options.work_dir / "cache";
    modelet::agent::Agent agent(options);
    const modelet::StopSignals signals([&agent] { agent.request_stop(); },
                                       modelet::StopSignals::Again::kCallsStop);
    agent.run();
  });
}
