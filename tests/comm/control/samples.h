// One good message of each kind, with something in every string and list, for tests and fuzz targets that change their
// bytes.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/control/control.h"
#include "comm/control/snapshot_tables.h"

namespace modelet::test {

namespace control = comm::control;

namespace samples {

inline std::unique_ptr<control::ShapeT> shape() {
  return std::make_unique<control::ShapeT>(control::ShapeT{{}, 1000, 500, 10000, 100, 20, 3, 7, 8});
}

inline std::vector<std::unique_ptr<control::HolderT>> holders() {
  std::vector<std::unique_ptr<control::HolderT>> holders;
  for (const char* node : {"a", "b"})
    holders.push_back(
        std::make_unique<control::HolderT>(control::HolderT{{}, node, "tcp://10.0.0.1:7", "key", "fetch"}));
  return holders;
}

inline control::RunStatusT status() {
  control::RunStatusT status;
  status.run = 3;
  status.name = "run";
  status.state = control::RunState::Running;
  status.detail = "waits behind run 2";
  status.node_names = {"a", "b"};
  status.straggler = "a";
  status.submitter = "alice";
  status.submitted = "2026-01-02T03:04:05Z";
  return status;
}

inline control::NodeStatusT node() {
  control::NodeStatusT node{{}, "a", "1.0", 2, uint64_t{4} << 30, 50, 10, 3, 12, 0.5, 0.1, 0.2, 90, true};
  node.state = control::NodeState::Draining;
  node.why = "an administrator drained it";
  node.address = "10.0.0.1";
  node.suspended = "its owner is there";
  node.key = std::string(64, 'a');
  return node;
}

inline comm::Snapshot snapshot() {
  return {.epoch = 1, .step = 10, .keep = true, .files = {{"index.json", {}, 4711, {"a", ""}}}};
}

}  // namespace samples

// In the order of the alternatives of ToSchedulerMessage.
inline std::vector<control::ToSchedulerMessage> messages_to_scheduler() {
  const std::string id(64, 'a');
  std::vector<control::ToSchedulerMessage> all;
  all.emplace_back(control::RegisterT{{},
                                      "node",
                                      5,
                                      "1.0",
                                      2,
                                      uint64_t{4} << 30,
                                      50,
                                      10,
                                      90,
                                      "tcp://10.0.0.1:*",
                                      "tcp://10.0.0.1:8",
                                      "key",
                                      "fetch",
                                      3,
                                      1,
                                      control::kControlVersion});
  all.emplace_back(control::HeartbeatT{{}, 1, 3, 12, 1, 77, uint64_t{1} << 30, "others want 2 of 4 cores"});
  all.emplace_back(control::PreparedT{{}, 3, 1, "tcp://10.0.0.1:9", 1 << 20, "key"});
  all.emplace_back(control::RunEventT{{}, 3, R"({"event": "progress", "step": 12})", 1, 4});
  all.emplace_back(control::RunDoneT{{}, 3, 1, control::Outcome::Failed, 12, "a peer is gone", false, true});
  all.emplace_back(control::LeaveT{});
  control::SubmitT submit;
  submit.name = "run";
  submit.experiment = "[data]\ntrain = \"/data/train.txt\"\n";
  submit.shape = samples::shape();
  submit.nodes = 2;
  submit.train_data = submit.test_data = id;
  submit.resume_files = control::to_table(samples::snapshot());
  submit.token = 99;
  all.emplace_back(std::move(submit));
  all.emplace_back(control::ListRunsT{});
  all.emplace_back(control::ListNodesT{{}, true});
  all.emplace_back(control::WatchT{{}, 3});
  all.emplace_back(control::StopRunT{{}, 3});
  all.emplace_back(control::FindDataPortT{});
  all.emplace_back(control::OfferT{{}, {1, 2, 3, 4}, 3, 10});
  all.emplace_back(control::PutChunkT{{}, id, 3, {1, 2, 3, 4, 5}});
  all.emplace_back(control::FetchManifestT{{}, id});
  all.emplace_back(control::FetchChunkT{{}, id, 3});
  all.emplace_back(control::LeaveRequestT{{}, 30, "others want this machine"});
  all.emplace_back(control::PeerMissedT{{}, 3, 1, 1, "silent for 2 s", false, 7});
  control::SnapshotHeldT held;
  held.run = 3;
  held.epoch = 1;
  held.step = 10;
  held.keep = true;
  held.files = control::to_tables(samples::snapshot().files);
  all.emplace_back(std::move(held));
  all.emplace_back(control::DrainNodeT{{}, "node", true});
  all.emplace_back(control::FindRunFilesT{{}, 3});
  all.emplace_back(control::FindRunLogT{{}, 3, "node", 5});
  all.emplace_back(control::ApproveNodeT{{}, "node"});
  all.emplace_back(control::EnrolT{{}, "node", {1, 2, 3, 4}});
  all.emplace_back(control::TraceRunT{{}, 3, 50});
  return all;
}

// In the order of the alternatives of FromSchedulerMessage.
inline std::vector<control::FromSchedulerMessage> messages_from_scheduler() {
  const std::string id(64, 'a');
  std::vector<control::FromSchedulerMessage> all;
  all.emplace_back(control::RegisteredT{{}, 1, 1.0, 5.0, 9, 5571});
  all.emplace_back(control::AliveT{{}, 77});
  all.emplace_back(control::RegisterAgainT{});
  all.emplace_back(control::RefusedT{{}, "the pool is full"});
  control::PrepareT prepare;
  prepare.run = 3;
  prepare.name = "run";
  prepare.epoch = 1;
  prepare.group_key = 4;
  prepare.size = 2;
  prepare.experiment = "[data]\n";
  prepare.shape = samples::shape();
  prepare.owner = {0, 1, 1, 0};
  prepare.train_data = prepare.test_data = id;
  prepare.snapshot = control::to_table(samples::snapshot());
  prepare.node_names = {"a", "b"};
  prepare.holders = samples::holders();
  all.emplace_back(std::move(prepare));
  all.emplace_back(control::StartT{{}, 3, 1, {"tcp://10.0.0.1:9", "tcp://10.0.0.2:9"}, {"key", "key"}});
  all.emplace_back(control::StopT{{}, 3, 1});
  all.emplace_back(control::AbortT{{}, 3, "the run needs this node no more", 1});
  all.emplace_back(control::AcceptedT{{}, 3});
  all.emplace_back(samples::status());
  control::RunListT runs;
  control::NodeListT nodes;
  for (int i = 0; i < 2; ++i) {
    runs.runs.push_back(std::make_unique<control::RunStatusT>(samples::status()));
    nodes.nodes.push_back(std::make_unique<control::NodeStatusT>(samples::node()));
  }
  all.emplace_back(std::move(runs));
  all.emplace_back(std::move(nodes));
  all.emplace_back(control::RunEventT{{}, 3, R"({"event": "progress", "step": 12})", 1, 4});
  all.emplace_back(control::DataPortT{{}, 5571});
  all.emplace_back(control::WantedT{{}, id, {0, 2, 5}});
  all.emplace_back(control::ChunkStoredT{{}, id, 3});
  all.emplace_back(control::ManifestOfT{{}, id, {1, 2, 3}});
  all.emplace_back(control::ChunkT{{}, id, 3, {1, 2, 3, 4, 5}});
  all.emplace_back(control::LaterT{{}, "busy", true});
  all.emplace_back(control::StableT{{}, 3, 1, 10});
  all.emplace_back(control::ReleasedT{});
  control::RunFilesT files;
  files.run = 3;
  files.snapshots.push_back(control::to_table(samples::snapshot()));
  files.holders = samples::holders();
  files.experiment = "[data]\n";
  all.emplace_back(std::move(files));
  all.emplace_back(control::RunLogT{{}, 3, "{}\n", 1, true});
  control::AdmitT admit;
  admit.run = 3;
  admit.holders = samples::holders();
  admit.epoch = 2;
  all.emplace_back(std::move(admit));
  all.emplace_back(control::PendingT{{}, "waits to be let in"});
  all.emplace_back(control::EnrolledT{{}, "node"});
  all.emplace_back(control::TraceT{{}, 3, 2, 50});
  return all;
}

}  // namespace modelet::test
