// TrainedJob: the real trainer as a rank of a simulated pool. It runs on a fiber, which pauses where the trainer
// waits: for messages, before it sends, and whenever the trainer looks at the clock. So anything may happen
// between any two messages. Its files are real ones, in a folder of its node; if the simulated disk is full, it
// cannot write. What the agent does around the trainer (node_agent/agent/job/job_runner.h) is done here with the
// same functions (rank_of_run.h).
//
// The connections between ranks are like those of ZeroMQ: messages arrive once and in order, until the
// connection breaks. Then all that are under way are lost, and the sender learns of it when it next receives.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "node_agent/train/trainer.h"
#include "tests/simulation/fiber.h"
#include "tests/simulation/job.h"
#include "tests/simulation/trained_workload.h"

namespace modelet::simulation {

class TrainedJob final : public Job {
 public:
  TrainedJob(JobSurroundings surroundings, const msg::PrepareT& prepare, TrainedWorkload& workload);

  void prepare() override;
  void start(const msg::StartT& start) override;
  void stop() override;
  void abort(const std::string& reason) override;
  bool received(const RankMessage& message) override;
  void vanish() override;
  uint64_t step() const override { return trainer_ ? trainer_->step() : 0; }

 private:
  class PassingClock;
  class Wires;
  // The connection over which this rank sends to another one, and the one over which it receives.
  struct Connections {
    uint64_t sending = 0, sent = 0;         // number of the connection, messages sent over it
    uint64_t receiving = 0, received = 0;   // the same
    std::map<uint64_t, RankMessage> early;  // that came before others which were sent earlier
  };

  // The longest that a look at the clock, or the sending of a message, takes. A step has several of both.
  double pace() const { return spec_.step_seconds / 8; }
  void resume();
  void wake();
  // On the fiber; throw Killed once the process has died.
  void wait(double seconds);
  void wait_for_news();
  void work();
  void train();
  void check_wanted() const;
  void wait_for_start();
  void bring(const comm::Snapshot& snapshot, std::span<const std::string> names,
             const std::filesystem::path& folder);
  void wrote(const agent::WrittenSnapshot& written);
  comm::GroupOptions group_options();
  void send(int rank, const comm::RecycledPtr<comm::Message>& message);
  void break_connection(int to);

  std::shared_ptr<TrainedJob> self() { return std::static_pointer_cast<TrainedJob>(shared_from_this()); }

  TrainedWorkload& workload_;
  std::optional<agent::Trainer> trainer_;
  comm::Group* group_ = nullptr;  // while it trains
  Wires* wires_ = nullptr;        // likewise
  std::vector<RankHost*> ranks_;
  std::vector<Connections> connections_;  // [ranks]
  std::deque<RankMessage> arrived_;
  std::vector<int> broken_;  // ranks whose connections have broken; the trainer does not know it yet
  uint64_t waits_ = 0;
  bool stop_asked_ = false, killed_ = false, over_ = false;
  std::string abort_reason_;  // empty: it was not aborted
  double linger_until_ = 0;   // messages under way are still delivered until then
  Fiber fiber_;               // the last member: it uses the others
};

}  // namespace modelet::simulation
