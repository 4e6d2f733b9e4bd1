// Snapshots on several nodes: services with real sockets and keys in one process, and a store like that of the
// scheduler.
#include "node_agent/snapshots/snapshot_service.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "comm/content/transfer/data_server.h"
#include "comm/content/transfer/transfer.h"
#include "comm/control/snapshot_tables.h"
#include "tests/error_of.h"
#include "tests/failing_disk.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;
namespace msg = comm::control;
using test::error_of;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kRun = 7;
constexpr double kLimit = 100;  // seconds within which expected things must happen

class SnapshotServiceTest : public testing::Test {
 protected:
  struct Node {
    std::string name;
    fs::path folder;
    comm::KeyPair key = comm::make_key_pair();
    std::mutex mutex = {};
    std::vector<msg::SnapshotHeldT> told = {};  // guarded by mutex
    std::unique_ptr<SnapshotService> service = {};
  };

  SnapshotServiceTest() {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~SnapshotServiceTest() override {
    nodes.clear();
    store.reset();
    fs::remove_all(folder);
  }

  Node& add(const std::string& name, uint64_t bytes = 64 << 20) {
    Node& node = nodes.emplace_back();
    node.name = name;
    node.folder = folder / name;
    start(node, bytes);
    return node;
  }
  static void start(Node& node, uint64_t bytes = 64 << 20) {
    node.service = std::make_unique<SnapshotService>(SnapshotServiceOptions{.node = node.name,
                                                                            .folder = node.folder / "holder",
                                                                            .bytes = bytes,
                                                                            .key = node.key,
                                                                            .retry_seconds = 0.05,
                                                                            .give_up_seconds = 3},
                                                     [&node](msg::SnapshotHeldT message) {
                                                       const std::lock_guard lock(node.mutex);
                                                       node.told.push_back(std::move(message));
                                                     });
  }
  void start_store() {
    store = std::make_unique<comm::DataServer>(comm::DataServerOptions{.store = folder / "store"},
                                               "tcp://127.0.0.1:*", std::nullopt);
  }

  void start_store_again(const std::string& endpoint) {
    ASSERT_TRUE(until([&] {  // another program may use the port for a moment
      try {
        store = std::make_unique<comm::DataServer>(comm::DataServerOptions{.store = folder / "store"},
                                                   endpoint, std::nullopt);
      } catch (const Error&) {
      }
      return store != nullptr;
    }));
  }
  // Two nodes, "a" and "b", whose scheduler has a store that does not answer.
  SnapshotService::Group form_with_store_away() {
    start_store();
    for (const char* name : {"a", "b"}) add(name);
    const SnapshotService::Group formed = group();
    store.reset();
    form(formed);
    return formed;
  }
  static bool is_in_store(const comm::Snapshot& told) {
    return !told.files.empty() && std::ranges::all_of(told.files, [](const auto& file) {
      return !file.holders.empty() && file.holders.back().empty();
    });
  }

  static msg::HolderT holder_of(const Node& node) {
    msg::HolderT holder;
    holder.node = node.name;
    if (!node.service) return holder;
    holder.endpoint = node.service->endpoint();
    holder.public_key = node.service->public_key();
    holder.fetch_key = node.service->fetch_key();
    return holder;
  }
  SnapshotService::Group group() const {
    SnapshotService::Group group{.pool = 1, .run = kRun, .epoch = 1};
    for (const Node& node : nodes) {
      group.members.push_back(node.name);
      group.holders.push_back(holder_of(node));
    }
    if (store) group.store = msg::SchedulerAddress(store->endpoint());
    return group;
  }
  // All running nodes form a group.
  void form(SnapshotService::Group formed) {
    for (Node& node : nodes) {
      if (node.service) node.service->begin(formed);
      ++formed.rank;
    }
  }
  void form() { form(group()); }

  static std::string content(const std::string& name, uint64_t step, size_t bytes) {
    std::string text = name + " of step " + std::to_string(step) + ". ";
    while (text.size() < bytes) text += text;
    text.resize(bytes);
    return text;
  }
  static fs::path folder_of(const Node& node, uint64_t step) {
    return node.folder / "run" / ("step-" + std::to_string(step));
  }
  static std::string file_name(const Node& node, int number) {
    return node.name + "-" + std::to_string(number) + ".safetensors";
  }
  // Writes the files of a snapshot and gives them to the service.
  static void take(Node& node, uint64_t step, bool keep = false, int files = 4, size_t bytes = 10'000) {
    fs::create_directories(folder_of(node, step));
    std::vector<std::string> names;
    for (int i = 0; i < files; ++i) {
      names.push_back(file_name(node, i));
      std::ofstream(folder_of(node, step) / names.back()) << content(names.back(), step, bytes);
    }
    node.service->take(step, keep, folder_of(node, step), names);
  }

  template <class Condition>
  static bool until(const Condition& condition) {
    for (const Stopwatch watch; watch.seconds() < kLimit;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  // The last report of the node about a step.
  static comm::Snapshot held(Node& node, uint64_t step) {
    EXPECT_TRUE(node.service->wait_until_held(step, kLimit)) << node.name << ", step " << step;
    return last_told(node, step);
  }
  static comm::Snapshot last_told(Node& node, uint64_t step) {
    const std::lock_guard lock(node.mutex);
    const auto last = std::find_if(node.told.rbegin(), node.told.rend(),
                                   [&](const auto& message) { return message.step == step; });
    return last == node.told.rend() ? comm::Snapshot{} : msg::snapshot_of(*last);
  }
  static fs::path entry_of(const Node& node, const comm::SnapshotFile& file) {
    return node.folder / "holder" / (to_text(file.content) + ".data");
  }
  Node& named(const std::string& name) { return *std::ranges::find(nodes, name, &Node::name); }
  static void damage(const fs::path& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at).put(static_cast<char>(~byte));
  }

  const fs::path folder = testing::TempDir() + "modelet_snapshot_keeper_test";
  std::unique_ptr<comm::DataServer> store;
  std::deque<Node> nodes;
};

TEST_F(SnapshotServiceTest, EveryFileIsHeldTwiceAndByOnePartner) {
  for (const char* name : {"a", "b", "c"}) add(name);
  form();
  for (Node& node : nodes) take(node, 100);
  for (Node& node : nodes) {
    const comm::Snapshot snapshot = held(node, 100);
    EXPECT_EQ(snapshot.files.size(), 4u);
    std::set<std::string> others;
    for (const comm::SnapshotFile& file : snapshot.files) {
      ASSERT_EQ(file.holders.size(), 2u);
      EXPECT_EQ(file.holders[0], node.name);
      others.insert(file.holders[1]);
      EXPECT_EQ(read_text_file(entry_of(named(file.holders[1]), file)), content(file.name, 100, 10'000));
      EXPECT_EQ(fs::hard_link_count(entry_of(node, file)), 2u) << "its own files are not copied";
    }
    EXPECT_EQ(others.size(), 1u) << "all files of " << node.name << " have the same second holder";
    EXPECT_FALSE(others.contains(node.name));
  }
}

// With the limit of one byte a second this would take hours.
TEST_F(SnapshotServiceTest, WhoIsWaitedForSendsAtFullSpeed) {
  for (const char* name : {"a", "b"}) add(name);
  auto slow = group();
  slow.bytes_per_second = 1;
  form(slow);
  SnapshotService& service = *named("a").service;
  EXPECT_TRUE(until([&] { return !service.is_sending(); }));
  take(named("a"), 100);
  EXPECT_TRUE(service.is_sending());
  service.hurry();
  EXPECT_EQ(held(named("a"), 100).files.size(), 4u);
  EXPECT_TRUE(until([&] { return !service.is_sending(); }));
}

TEST_F(SnapshotServiceTest, WhatIsStableIsSaidByTheScheduler) {
  SnapshotService& service = *add("a").service;
  auto formed = group();
  formed.from_step = 50;
  form(formed);
  EXPECT_TRUE(service.is_stable(50));
  EXPECT_FALSE(service.is_stable(51));
  service.stable(kRun, 100);
  service.stable(kRun + 1, 1000);
  EXPECT_TRUE(service.is_stable(100));
  EXPECT_FALSE(service.is_stable(101));
}

TEST_F(SnapshotServiceTest, AHolderThatIsGoneIsReplaced) {
  for (const char* name : {"a", "b", "c"}) add(name);
  const auto formed = group();
  named("b").service.reset();
  form(formed);
  take(named("a"), 100);
  for (const comm::SnapshotFile& file : held(named("a"), 100).files)
    EXPECT_THAT(file.holders, ElementsAre("a", "c"));
}

TEST_F(SnapshotServiceTest, WhatIsLostIsFetchedFromWhoHasIt) {
  for (const char* name : {"a", "b", "c"}) add(name);
  form();
  take(named("a"), 100);
  const comm::Snapshot snapshot = held(named("a"), 100);
  named("a").service.reset();
  auto next = group();
  next.epoch = 2;
  form(next);
  std::vector<std::string> names;
  for (const auto& file : snapshot.files) names.push_back(file.name);
  named("c").service->bring(snapshot, names, named("c").folder / "resume", [] {});
  for (const auto& name : names)
    EXPECT_EQ(read_text_file(named("c").folder / "resume" / name), content(name, 100, 10'000));
  // The node counts as another holder.
  const comm::Snapshot told = held(named("c"), 100);
  EXPECT_EQ(told.epoch, 2u);
  ASSERT_EQ(told.files.size(), names.size());
  for (const auto& file : told.files) {
    EXPECT_THAT(file.holders, Contains("c"));
    EXPECT_EQ(read_text_file(entry_of(named("c"), file)), content(file.name, 100, 10'000));
  }
}

// The copy of each holder has another damaged chunk.
TEST_F(SnapshotServiceTest, ADamagedChunkComesFromAnotherHolder) {
  for (const char* name : {"a", "b", "c"}) add(name);
  form();
  constexpr size_t kBytes = 3 * comm::kChunkBytes + 17;
  take(named("a"), 100, false, 1, kBytes);
  comm::Snapshot snapshot = held(named("a"), 100);
  comm::SnapshotFile& file = snapshot.files.at(0);
  Node& second = named(file.holders.at(1));
  Node& third = named(file.holders[1] == "b" ? "c" : "b");
  damage(entry_of(named("a"), file), comm::kChunkBytes + 1);
  damage(entry_of(second, file), 2 * comm::kChunkBytes + 1);
  const std::vector<std::string> names = {file.name};
  third.service->bring(snapshot, names, third.folder / "resume", [] {});
  EXPECT_TRUE(read_text_file(third.folder / "resume" / file.name) == content(file.name, 100, kBytes));
}

TEST_F(SnapshotServiceTest, WhatNobodyHasIsAnError) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  comm::Snapshot snapshot{.step = 5, .files = {{"index.json", comm::content_id({}), 3, {"a", "b", "x"}}}};
  const std::vector<std::string> there = {"index.json"}, other = {"else.json"};
  EXPECT_THAT(error_of([&] { named("b").service->bring(snapshot, there, folder / "r", [] {}); }),
              HasSubstr("index.json of the snapshot of step 5 cannot be had: the node 'a' refuses data"));
  EXPECT_THAT(error_of([&] { named("b").service->bring(snapshot, other, folder / "r", [] {}); }),
              HasSubstr("has no file else.json"));
  EXPECT_EQ(error_of([&] {
              named("b").service->bring(snapshot, there, folder / "r", [] { throw Interrupted("enough"); });
            }),
            "enough");
}

TEST_F(SnapshotServiceTest, OwnFilesAreFoundOnTheOwnDisk) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node& a = named("a");
  take(a, 100);
  const comm::Snapshot snapshot = held(a, 100);
  a.service.reset();
  named("b").service.reset();  // no other holder is left
  fs::remove_all(folder_of(a, 100));
  start(a);
  SnapshotService::Group alone{.pool = 1, .run = kRun, .epoch = 2, .members = {"a"}};
  a.service->begin(alone);
  const std::vector<std::string> names = {file_name(a, 0), file_name(a, 3)};
  a.service->bring(snapshot, names, folder_of(a, 100), [] {});
  for (const auto& name : names)
    EXPECT_EQ(read_text_file(folder_of(a, 100) / name), content(name, 100, 10'000));
}

// The run continues, and so do its snapshots.
TEST_F(SnapshotServiceTest, ADiskThatIsFullCostsASnapshot) {
  Node& a = add("a");
  add("b", 64 << 10);
  form();
  take(a, 100, false, 2, 100'000);
  EXPECT_FALSE(a.service->wait_until_held(100, 0.3)) << "there is no room for it";
  take(a, 200, false, 2, 5'000);
  EXPECT_EQ(held(a, 200).files.size(), 2u);
  EXPECT_TRUE(last_told(a, 100).files.empty());
}

TEST_F(SnapshotServiceTest, AFileThatIsMissingCostsASnapshot) {
  Node& a = add("a");
  add("b");
  form();
  a.service->take(100, false, folder / "nowhere", {"x.safetensors"});
  take(a, 200);
  EXPECT_EQ(held(a, 200).files.size(), 4u);
}

TEST_F(SnapshotServiceTest, StableRemovesWhatIsOlder) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node &a = named("a"), &b = named("b");
  std::map<uint64_t, comm::SnapshotFile> files;
  for (const uint64_t step : {100, 200, 300, 400}) {
    take(a, step, step == 200, 1);
    files[step] = held(a, step).files.at(0);
  }
  for (Node* node : {&a, &b}) node->service->stable(kRun + 1, 400);  // of another run
  for (Node* node : {&a, &b}) node->service->stable(kRun, 300);
  EXPECT_TRUE(until([&] {
    return !fs::exists(entry_of(a, files[100])) && !fs::exists(entry_of(b, files[100])) &&
           !fs::exists(entry_of(b, files[200])) && !fs::exists(folder_of(a, 100));
  }));
  EXPECT_TRUE(fs::exists(folder_of(a, 200) / file_name(a, 0))) << "the user's, for the trainer to remove";
  for (const uint64_t step : {300, 400}) {
    EXPECT_TRUE(fs::exists(folder_of(a, step)));
    for (Node* node : {&a, &b}) EXPECT_TRUE(fs::exists(entry_of(*node, files[step]))) << step;
  }
}

// A file that does not change belongs to several snapshots, and is removed with the last of them.
TEST_F(SnapshotServiceTest, WhatIsStillOfASnapshotStays) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node &a = named("a"), &b = named("b");
  comm::SnapshotFile same;
  for (const uint64_t step : {100, 200}) {
    fs::create_directories(folder_of(a, step));
    std::ofstream(folder_of(a, step) / "encoder.safetensors") << "the same";
    a.service->take(step, false, folder_of(a, step), {"encoder.safetensors"});
    same = held(a, step).files.at(0);
  }
  for (Node* node : {&a, &b}) node->service->stable(kRun, 200);
  EXPECT_TRUE(until([&] { return !fs::exists(folder_of(a, 100)); }));
  take(a, 300, false, 1);  // when this is held, the work for stable() is done
  const comm::SnapshotFile later = held(a, 300).files.at(0);
  EXPECT_TRUE(fs::exists(entry_of(a, same)));
  EXPECT_TRUE(fs::exists(entry_of(b, same)));
  for (Node* node : {&a, &b}) node->service->stable(kRun, 300);
  EXPECT_TRUE(until([&] { return !fs::exists(entry_of(a, same)) && !fs::exists(entry_of(b, same)); }));
  EXPECT_TRUE(fs::exists(entry_of(b, later)));
}

// Seed 152184 of the simulation: a run was submitted twice. One of the two waits for nodes while the other
// makes progress.
TEST_F(SnapshotServiceTest, WhatAnEqualRunHasStays) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node &a = named("a"), &b = named("b");
  take(a, 100, false, 1);
  const comm::SnapshotFile same = held(a, 100).files.at(0);
  b.service.reset();  // it has forgotten what it held
  start(b);
  auto other = group();
  ++other.run;
  form(other);
  std::map<uint64_t, comm::SnapshotFile> files;
  for (const uint64_t step : {100, 200, 300}) {
    take(a, step, false, 1);
    files[step] = held(a, step).files.at(0);
  }
  ASSERT_EQ(files[100].content, same.content);
  for (Node* node : {&a, &b}) node->service->stable(other.run, 300);
  EXPECT_TRUE(
      until([&] { return !fs::exists(entry_of(a, files[200])) && !fs::exists(entry_of(b, files[200])); }));
  for (Node* node : {&a, &b}) EXPECT_TRUE(fs::exists(entry_of(*node, same))) << node->name;
}

TEST_F(SnapshotServiceTest, WhatIsToBeKeptGoesToTheStoreToo) {
  start_store();
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node& a = named("a");
  take(a, 100);
  for (const auto& file : held(a, 100).files) EXPECT_THAT(file.holders, ElementsAre("a", "b"));
  take(a, 200, true);
  EXPECT_TRUE(until([&] {
    const comm::Snapshot told = last_told(a, 200);
    return !told.files.empty() && std::ranges::all_of(told.files, [](const auto& file) {
      return file.holders == std::vector<std::string>{"a", "b", ""};
    });
  }));
  const comm::Snapshot kept = last_told(a, 200);
  EXPECT_TRUE(kept.keep);
  for (const auto& file : kept.files)
    EXPECT_EQ(read_text_file(folder / "store" / (to_text(file.content) + ".data")),
              content(file.name, 200, 10'000));
}

// A file that the store lacks is not removed, not even when the node works for another run. Here the node
// that sent the file to the store was lost before it could report that, and the other holder has lost its
// disk.
TEST_F(SnapshotServiceTest, TheStoreMayHaveWhatNobodyKnowsOf) {
  start_store();
  for (const char* name : {"a", "b", "c"}) add(name);
  form();
  take(named("a"), 100, true, 1);
  ASSERT_TRUE(until([&] {
    const comm::Snapshot told = last_told(named("a"), 100);
    return !told.files.empty() && std::ranges::count(told.files[0].holders, "") == 1;
  }));
  comm::Snapshot snapshot = last_told(named("a"), 100);
  snapshot.files[0].holders = {"a"};
  named("a").service.reset();
  const std::vector<std::string> names = {snapshot.files[0].name};
  named("c").service->bring(snapshot, names, named("c").folder / "resume", [] {});
  EXPECT_EQ(read_text_file(named("c").folder / "resume" / names[0]), content(names[0], 100, 10'000));
}

TEST_F(SnapshotServiceTest, WhatTheStoreHasNotGotStays) {
  const auto formed = form_with_store_away();
  Node& a = named("a");
  take(a, 100, true);
  const comm::Snapshot snapshot = held(a, 100);
  take(a, 200);
  held(a, 200);
  a.service->stable(kRun, 200);
  fs::remove_all(folder_of(a, 100));  // removes the names of the trainer; the files stay
  auto other = formed;
  other.run = kRun + 1;
  form(other);
  take(a, 1);
  held(a, 1);
  for (const auto& file : snapshot.files) EXPECT_TRUE(fs::exists(entry_of(a, file)));
  start_store_again(formed.store->endpoint);
  EXPECT_TRUE(until([&] { return is_in_store(last_told(a, 100)); }));
  const std::lock_guard lock(a.mutex);
  EXPECT_EQ(std::ranges::find(a.told, uint64_t{100}, &msg::SnapshotHeldT::step)->run, kRun);
}

// The copy of this node is damaged before the store has the file; that of its partner is not.
TEST_F(SnapshotServiceTest, WhatIsDamagedHereReachesTheStoreAllTheSame) {
  const auto formed = form_with_store_away();
  Node& a = named("a");
  take(a, 100, true, 1);
  const comm::SnapshotFile file = held(a, 100).files.at(0);
  damage(entry_of(a, file), 5);
  start_store_again(formed.store->endpoint);
  EXPECT_TRUE(until([&] { return is_in_store(last_told(a, 100)); }));
  EXPECT_EQ(read_text_file(entry_of(a, file)), content(file.name, 100, file.bytes));
}

TEST_F(SnapshotServiceTest, WhatTheDiskCannotReadReachesTheStoreAllTheSame) {
  const auto formed = form_with_store_away();
  Node& a = named("a");
  take(a, 100, true, 1);
  const comm::SnapshotFile file = held(a, 100).files.at(0);
  const test::FailingDisk disk(entry_of(a, file));
  start_store_again(formed.store->endpoint);
  EXPECT_TRUE(until([&] { return is_in_store(last_told(a, 100)); }));
  EXPECT_TRUE(disk.was_written()) << "with what another node has";
  EXPECT_EQ(read_text_file(entry_of(a, file)), content(file.name, 100, file.bytes));
}

TEST_F(SnapshotServiceTest, WhatTheDiskCannotReadComesFromAnotherHolder) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node& a = named("a");
  take(a, 100, false, 1);
  const comm::Snapshot snapshot = held(a, 100);
  const std::vector<std::string> names = {file_name(a, 0)};
  const test::FailingDisk disk(folder_of(a, 100) / names[0]);
  a.service->bring(snapshot, names, folder_of(a, 100), [] {});
  EXPECT_TRUE(disk.was_written()) << "with what another node has";
  EXPECT_EQ(read_text_file(folder_of(a, 100) / names[0]), content(names[0], 100, 10'000));
}

// The file is skipped: the next snapshot is held.
TEST_F(SnapshotServiceTest, AFileThatTheDiskCannotReadCostsASnapshot) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node& a = named("a");
  fs::create_directories(folder_of(a, 100));
  std::ofstream(folder_of(a, 100) / "w") << content("w", 100, 10'000);
  const test::FailingDisk disk(folder_of(a, 100) / "w");
  a.service->take(100, false, folder_of(a, 100), {"w"});
  EXPECT_FALSE(a.service->wait_until_held(100, 0.3));
  take(a, 200);
  EXPECT_EQ(held(a, 200).files.size(), 4u);
}

// The run may have to continue from a snapshot that the store did not take.
TEST_F(SnapshotServiceTest, OnlyTheNewestWaitForTheStore) {
  start_store();
  for (const char* name : {"a", "b"}) add(name);
  const auto formed = group();
  store.reset();
  form(formed);
  Node& a = named("a");
  std::map<uint64_t, comm::SnapshotFile> files;
  for (const uint64_t step : {100, 200, 300}) {
    take(a, step, true, 1);
    files[step] = held(a, step).files.at(0);
  }
  take(a, 350, false, 1);
  held(a, 350);  // when this is held, the work for take() is done
  for (const auto& [step, file] : files) EXPECT_TRUE(fs::exists(entry_of(a, file))) << step;
  a.service->stable(kRun, 350);
  EXPECT_TRUE(until([&] { return !fs::exists(entry_of(a, files[100])); }));
  for (const uint64_t step : {200, 300}) EXPECT_TRUE(fs::exists(entry_of(a, files[step]))) << step;
}

TEST_F(SnapshotServiceTest, AGroupOfOneHasTheStore) {
  start_store();
  Node& a = add("a");
  form();
  take(a, 100);
  for (const auto& file : held(a, 100).files) EXPECT_THAT(file.holders, ElementsAre("a", ""));
}

TEST_F(SnapshotServiceTest, WithoutAStoreAGroupOfOneHasItself) {
  Node& a = add("a");
  form();
  take(a, 100);
  for (const auto& file : held(a, 100).files) EXPECT_THAT(file.holders, ElementsAre("a"));
}

// A snapshot that was not held when the new group was formed is written again. One that was held is reported
// again as it was.
TEST_F(SnapshotServiceTest, ANewGroupForgetsWhatIsWrittenAgain) {
  for (const char* name : {"a", "b"}) add(name);
  auto formed = group();
  form(formed);
  Node& a = named("a");
  for (const uint64_t step : {100, 200}) {
    take(a, step);
    held(a, step);
  }
  const comm::Snapshot first = last_told(a, 100);
  formed.epoch = 2;
  formed.from_step = 100;
  form(formed);
  EXPECT_TRUE(until([&] { return !a.service->wait_until_held(200, 0); }));
  take(a, 200);
  EXPECT_EQ(held(a, 200).epoch, 2u);
  EXPECT_TRUE(a.service->wait_until_held(100, kLimit));
  for (const auto& file : first.files) EXPECT_TRUE(fs::exists(entry_of(a, file)));
}

// A node wrote a snapshot for a group that came to nothing, and worked for another run before the store took it.
TEST_F(SnapshotServiceTest, AFormerGroupsFilesAreNotReportedForThePresentOne) {
  start_store();
  const std::string endpoint = store->endpoint();
  for (const char* name : {"a", "b"}) add(name);
  auto formed = group();
  store.reset();
  form(formed);
  Node& a = named("a");
  take(a, 200, true);
  held(a, 200);
  auto other = formed;
  other.run = kRun + 1;
  form(other);
  formed.epoch = 2;
  formed.from_step = 100;
  form(formed);
  take(a, 300, true);
  start_store_again(endpoint);
  EXPECT_TRUE(until([&] { return is_in_store(last_told(a, 300)); }));
  EXPECT_EQ(last_told(a, 200).epoch, 1u);
}

TEST_F(SnapshotServiceTest, AKeyThatNobodyNamedIsRefused) {
  for (const char* name : {"a", "b"}) add(name);
  form();
  Node &a = named("a"), &b = named("b");
  take(a, 100, false, 1);
  const comm::SnapshotFile file = held(a, 100).files.at(0);
  const auto fetch_as = [&](const comm::KeyPair& key) {
    comm::DataLink link(
        msg::SchedulerAddress(b.service->endpoint(), comm::ClientKeys{key, b.service->public_key()}),
        {.who = "b", .give_up = kLimit});
    comm::fetch_manifest(link, file.content);
  };
  const auto offer_as = [&](const comm::KeyPair& key, uint64_t run) {
    comm::DataLink link(
        msg::SchedulerAddress(b.service->endpoint(), comm::ClientKeys{key, b.service->public_key()}),
        {.who = "b", .give_up = kLimit});
    comm::send_content(link, comm::Manifest::of({}), {}, {run, 1});
  };
  const comm::KeyPair stranger = comm::make_key_pair();
  EXPECT_NE(error_of([&] { fetch_as(stranger); }), "no error");
  EXPECT_NE(error_of([&] { offer_as(stranger, kRun); }), "no error");
  EXPECT_EQ(error_of([&] { fetch_as(a.key); }), "no error");
  EXPECT_EQ(error_of([&] { offer_as(a.key, kRun); }), "no error");
  EXPECT_THAT(error_of([&] { offer_as(a.key, kRun + 1); }), HasSubstr("holds nothing of run 8"));
  EXPECT_THAT(error_of([&] { offer_as(a.key, 0); }), HasSubstr("holds nothing of run 0"));
  msg::HolderT admitted;
  admitted.node = "new";
  admitted.fetch_key = stranger.public_key;
  b.service->admit({admitted});
  EXPECT_EQ(error_of([&] { fetch_as(stranger); }), "no error");
  auto without_a = group();
  without_a.holders = {admitted};
  b.service->begin(without_a);
  EXPECT_NE(error_of([&] { fetch_as(a.key); }), "no error");
}

TEST_F(SnapshotServiceTest, SendingKeepsToItsRate) {
  for (const char* name : {"a", "b"}) add(name);
  auto slow = group();
  slow.bytes_per_second = 1;  // after the first chunk nothing is sent for days
  form(slow);
  Node& a = named("a");
  take(a, 100, false, 1, 5'000);
  take(a, 200, false, 2, 5'000);
  EXPECT_FALSE(a.service->wait_until_held(200, 0.5));
  slow.bytes_per_second = 0;
  slow.epoch = 2;
  form(slow);
  take(a, 200, false, 2, 5'000);
  EXPECT_EQ(held(a, 200).files.size(), 2u);
}

}  // namespace
}  // namespace modelet::agent
