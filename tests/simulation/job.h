// Job: one rank of a run, from Prepare to RunDone, on a node of the simulation. What a rank computes is up to
// the workload (workload.h): a ChainJob is a chain of hashes, a TrainedJob is the real trainer.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/transport/transport.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/snapshot_node.h"

namespace modelet::simulation {

// What a rank sends to another one.
struct RankMessage {
  uint64_t run = 0;
  uint32_t epoch = 0, rank = 0;

  // Of a ChainJob:
  uint64_t step = 0;   // that is completed
  uint64_t total = 0;  // sum of the contributions of its modelets
  bool stop = false;   // the rank was asked to end after this step

  // Of a TrainedJob:
  uint64_t connection = 0, number = 0;  // of the message within the connection
  comm::RecycledPtr<comm::Message> content = {};
};

// Something at an address that has ranks.
class RankHost {
 public:
  virtual ~RankHost() = default;
  virtual Host& host() = 0;
  virtual bool received(const RankMessage& message) = 0;  // false: no such rank listens yet
};

struct JobSurroundings {
  World& world;
  Network& network;
  Promises& promises;
  Host& host;
  Disk& disk;
  SnapshotNode& snapshots;
  std::string node, endpoint;
  std::function<RankHost*(const std::string& endpoint)> find;  // null: no node has that address
  std::function<void(msg::ToSchedulerMessage)> report;
  Mutant mutant = Mutant::kNone;
};

class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(JobSurroundings surroundings, const msg::PrepareT& prepare)
      : around_(std::move(surroundings)), prepare_(prepare), spec_(around_.promises.spec(prepare.name)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  virtual ~Job() = default;

  virtual void prepare() = 0;
  virtual void start(const msg::StartT& start) = 0;
  virtual void stop() = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual bool received(const RankMessage& message) = 0;  // as RankHost::received
  virtual void vanish() = 0;                              // its process has died
  virtual uint64_t step() const = 0;

 protected:
  bool is_of_group(const RankMessage& message) const {
    return message.run == prepare_.run && message.epoch == prepare_.epoch;
  }
  // Messages of earlier groups are dropped. Others are refused for now, and come again. In the product, peers
  // prove at the connection for which group they work.
  bool is_dropped(const RankMessage& message) const {
    return message.run == prepare_.run && message.epoch < prepare_.epoch;
  }
  RankMessage message() const {
    return {.run = prepare_.run, .epoch = prepare_.epoch, .rank = prepare_.rank};
  }
  std::vector<RankHost*> find_ranks(const msg::StartT& start) const;
  void report_prepared();
  void report_missed(uint32_t rank, bool over, const std::string& why);
  void report_event(const nlohmann::json& event);

  const JobSurroundings around_;
  const msg::PrepareT prepare_;
  const RunSpec spec_;
};

}  // namespace modelet::simulation
