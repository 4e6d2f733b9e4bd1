// Scheduler, agents and clients over real sockets in one process, with jobs that do what the test wants.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <zmq.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "comm/content/snapshot.h"
#include "comm/content/store.h"
#include "comm/control/snapshot_tables.h"
#include "node_agent/agent/agent.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/run_on_pool.h"
#include "scheduler/server/server.h"
#include "tests/scheduler/pools.h"
#include "tests/scheduler/scripted_job.h"

namespace modelet {
namespace {

using cli::PoolClient;
using comm::control::RunState;
using comm::control::RunStatusT;
using test::submission;
using test::wait_until;
using testing::HasSubstr;
using testing_support::Script;
using testing_support::ScriptedJob;
using namespace std::chrono_literals;

constexpr double kDeadAfter = 60;  // seconds; so long that no agent counts as dead on a busy machine

class TestServer {
 public:
  explicit TestServer(const std::string& listen = "tcp://127.0.0.1:*") : server_(options(listen)) {
    thread_ = std::thread([this] { server_.run(); });
  }
  ~TestServer() {
    server_.request_stop();
    thread_.join();
  }
  const std::string& endpoint() const { return server_.endpoint(); }

 private:
  static scheduler::ServerOptions options(const std::string& listen) {
    scheduler::ServerOptions options{.listen = listen, .insecure = true};
    options.core.heartbeat = 0.1;
    options.core.dead_after = kDeadAfter;
    options.core.pool = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return options;
  }
  scheduler::Server server_;
  std::thread thread_;
};

class TestAgent {
 public:
  TestAgent(const std::string& scheduler, const std::string& name, const Script& script)
      : agent_({.scheduler = scheduler,
                .name = name,
                .cores = 1,
                .memory_bytes = uint64_t{4} << 30,
                .gflops = 1,
                .memory_gbps = 1,
                .insecure = true,
                .work_dir = folder_.path(),
                .make_job = [script](agent::TrainJob job) {
                  return std::make_unique<ScriptedJob>(std::move(job), script);
                }}) {
    thread_ = std::thread([this] {
      try {
        agent_.run();
      } catch (const Error& error) {
        refusal = error.what();
      }
      ended = true;
    });
  }
  ~TestAgent() {
    agent_.request_stop();
    agent_.request_stop();
    thread_.join();
  }
  void request_stop() { agent_.request_stop(); }

  std::string refusal;  // valid after `ended`
  std::atomic<bool> ended{false};

 private:
  const TemporaryFolder folder_{"pool-test"};
  agent::Agent agent_;
  std::thread thread_;
};

class PoolTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    start_logging("pool_test");
  }  // before there are threads, like in the programs

  void add_agents(int count, const Script& script = {}) {
    for (int i = 0; i < count; ++i) {
      const size_t before = agents.size();
      agents.push_back(std::make_unique<TestAgent>(server->endpoint(),
                                                   std::string(1, static_cast<char>('a' + before)), script));
    }
    wait_until([&] { return client.nodes().nodes.size() == agents.size(); });
  }
  RunStatusT watch(uint64_t run, std::vector<std::string>* events = nullptr) {
    return client.watch(run, {.on_event = [&](const nlohmann::json& event) {
                          if (events != nullptr) events->push_back(event.at("event"));
                        }});
  }
  RunStatusT status(uint64_t run) {
    for (const auto& entry : client.list().runs)
      if (entry->run == run) return *entry;
    return {};
  }
  void wait_until_all_are_free() {
    wait_until([&] {
      const auto list = client.nodes();
      return std::all_of(list.nodes.begin(), list.nodes.end(),
                         [](const auto& node) { return node->run == 0; });
    });
  }

  std::unique_ptr<TestServer> server = std::make_unique<TestServer>();
  PoolClient client{server->endpoint()};
  std::vector<std::unique_ptr<TestAgent>> agents;
};

TEST_F(PoolTest, RunsOneAfterTheOther) {
  add_agents(3);
  for (const uint32_t nodes : {3u, 1u, 2u}) {
    std::vector<std::string> events;
    const uint64_t run = client.submit(submission(nodes));
    const RunStatusT end = watch(run, &events);
    EXPECT_EQ(end.state, RunState::Finished) << end.detail;
    EXPECT_EQ(end.node_names.size(), nodes);
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back(), "finished") << "all events come before the end";
  }
}

TEST_F(PoolTest, AFailedJobIsReportedAndTheAgentsTakeTheNext) {
  add_agents(2, {.fail_in_run = "the disk is full"});
  for (int i = 0; i < 2; ++i) {
    const RunStatusT end = watch(client.submit(submission(2)));
    EXPECT_EQ(end.state, RunState::Failed);
    EXPECT_THAT(end.detail, HasSubstr("node 'b' failed"));
    EXPECT_THAT(end.detail, HasSubstr("the disk is full"));
    wait_until_all_are_free();
  }
  EXPECT_EQ(watch(client.submit(submission(1))).state, RunState::Finished) << "rank 0 alone does not fail";
}

TEST_F(PoolTest, AFailureInPrepareIsReported) {
  add_agents(2, {.fail_in_prepare = "no such data"});
  const RunStatusT end = watch(client.submit(submission(2)));
  EXPECT_EQ(end.state, RunState::Failed);
  EXPECT_THAT(end.detail, HasSubstr("no such data"));
  wait_until_all_are_free();
}

TEST_F(PoolTest, StopEndsAllRanksTogether) {
  add_agents(2, {.endless = true});
  const uint64_t run = client.submit(submission(2));
  wait_until([&] { return status(run).step > 3; });
  client.stop(run);
  const RunStatusT end = watch(run);
  EXPECT_EQ(end.state, RunState::Stopped) << end.detail;
  wait_until_all_are_free();
}

TEST_F(PoolTest, AnAgentThatLeavesAtOnceIsDoneWithout) {
  add_agents(2, {.endless = true});
  const uint64_t run = client.submit(submission(2));
  wait_until([&] { return status(run).step > 3; });
  for (int i = 0; i < 2; ++i) agents[1]->request_stop();
  wait_until([&] { return agents[1]->ended.load(); });
  EXPECT_EQ(agents[1]->refusal, "");
  wait_until([&] { return status(run).state == RunState::Running && status(run).node_names.size() == 1; });
  EXPECT_EQ(client.nodes().nodes.size(), 1u);
  client.stop(run);
  EXPECT_EQ(watch(run).state, RunState::Stopped);
}

TEST_F(PoolTest, AgentsOutliveTheScheduler) {
  add_agents(2, {.endless = true});
  const uint64_t run = client.submit(submission(2));
  wait_until([&] { return status(run).step > 3; });
  const std::string endpoint = server->endpoint();
  server.reset();
  server = std::make_unique<TestServer>(endpoint);
  PoolClient anew(endpoint);
  wait_until([&] { return anew.nodes().nodes.size() == 2; });
  const uint64_t next = anew.submit(submission(2));
  anew.stop(next);
  EXPECT_EQ(anew.watch(next, {}).state, RunState::Stopped);
}

TEST_F(PoolTest, ASecondAgentOfTheSameNameIsRefused) {
  add_agents(2, {.endless = true});
  const uint64_t run = client.submit(submission(2));
  wait_until([&] { return status(run).step > 3; });
  TestAgent twin(server->endpoint(), "a", {});
  wait_until([&] { return twin.ended.load(); });
  EXPECT_THAT(twin.refusal, HasSubstr("an agent named 'a' is at work already"));
  EXPECT_FALSE(agents[0]->ended);
  EXPECT_EQ(status(run).state, RunState::Running);
  client.stop(run);
  EXPECT_EQ(watch(run).state, RunState::Stopped);
}

// The connection of a killed process is gone, so its successor need not wait until it counts as dead.
TEST_F(PoolTest, AnAgentThatWasKilledIsReplacedAtOnce) {
  server.reset();
  scheduler::ServerOptions options{.listen = "tcp://127.0.0.1:*", .insecure = true};
  options.core.heartbeat = 0.1;
  options.core.dead_after = 3600;
  scheduler::Server patient(options);
  std::thread thread([&patient] { patient.run(); });
  PoolClient its_client(patient.endpoint());
  {
    comm::control::ClientSocket killed(patient.endpoint());
    wait_until([&] {
      killed.send(scheduler::test::registration("a", 1));
      return !its_client.nodes().nodes.empty();
    });
  }
  TestAgent again(patient.endpoint(), "a", {});
  wait_until([&] {
    const auto list = its_client.nodes();
    return !list.nodes.empty() && list.nodes[0]->version != "test";
  });
  EXPECT_FALSE(again.ended);
  patient.request_stop();
  thread.join();
}

// While a plan takes for ever, heartbeats and users are still heard.
TEST(ServerTest, HearsEverybodyWhileAPlanIsMade) {
  std::mutex mutex;
  mutex.lock();  // the plan is made once this is free
  scheduler::ServerOptions options{.listen = "tcp://127.0.0.1:*", .insecure = true};
  options.core.heartbeat = 0.1;
  options.core.dead_after = kDeadAfter;
  options.plan = [&mutex](const scheduler::PlanRequest& request) {
    const std::lock_guard wait(mutex);
    return scheduler::carry_out(request);
  };
  scheduler::Server server(options);
  std::thread thread([&server] { server.run(); });
  PoolClient client(server.endpoint());
  TestAgent agent(server.endpoint(), "a", {});
  wait_until([&] { return client.nodes().nodes.size() == 1; });
  const uint64_t run = client.submit(submission(1));
  wait_until([&] { return client.list().runs.at(0)->detail == "is placed on 1 node"; });
  EXPECT_EQ(client.nodes().nodes.size(), 1u);
  EXPECT_EQ(client.list().runs.at(0)->state, RunState::Queued);
  mutex.unlock();
  EXPECT_EQ(client.watch(run, {}).state, RunState::Finished);
  server.request_stop();
  thread.join();
}

TEST(ServerTest, OutlivesALogThatItCannotRead) {
  scheduler::ServerOptions options{.listen = "tcp://127.0.0.1:*", .insecure = true};
  options.read_log = [](uint64_t, const std::string&, uint64_t) -> scheduler::LogPage {
    throw Error("/state/ledger.db cannot be read");
  };
  options.nodes_with_log = [](uint64_t) { return std::vector<std::string>{"a"}; };
  scheduler::Server server(options);
  std::thread thread([&server] { server.run(); });
  PoolClient client(server.endpoint());
  cli::Submission waiting = submission(1);
  waiting.wait = true;
  const uint64_t run = client.submit(waiting);
  std::string refusal;
  try {
    client.log(run, "a", 0);
  } catch (const Error& error) {
    refusal = error.what();
  }
  EXPECT_THAT(refusal, HasSubstr("the log of run " + std::to_string(run) + " cannot be read"));
  EXPECT_THAT(refusal, testing::Not(HasSubstr("/state"))) << "users have no business with its paths";
  EXPECT_EQ(client.list().runs.size(), 1u);
  server.request_stop();
  thread.join();
}

TEST(ServerTest, MakesNoPlanThatNobodyWantsAnyMore) {
  std::mutex mutex;
  mutex.lock();  // the first plan is made once this is free, and the others after it
  std::vector<uint64_t> made;
  scheduler::ServerOptions options{.listen = "tcp://127.0.0.1:*", .insecure = true};
  options.core.heartbeat = 0.1;
  options.core.dead_after = kDeadAfter;
  options.plan = [&](const scheduler::PlanRequest& request) {
    const std::lock_guard wait(mutex);
    made.push_back(request.run);
    return scheduler::carry_out(request);
  };
  scheduler::Server server(options);
  std::thread thread([&server] { server.run(); });
  PoolClient client(server.endpoint());
  TestAgent first_agent(server.endpoint(), "a", {}), second_agent(server.endpoint(), "b", {});
  wait_until([&] { return client.nodes().nodes.size() == 2; });
  const uint64_t first = client.submit(submission(1)), unwanted = client.submit(submission(1));
  EXPECT_EQ(client.stop(unwanted).state, RunState::Stopped);
  const uint64_t last = client.submit(submission(1));
  mutex.unlock();
  EXPECT_EQ(client.watch(last, {}).state, RunState::Finished);
  {
    const std::lock_guard wait(mutex);
    EXPECT_THAT(made, testing::ElementsAre(first, last));
  }
  server.request_stop();
  thread.join();
}

TEST_F(PoolTest, RunOnPoolReportsAndThrowsWhatTheRunDid) {
  add_agents(2, {.fail_in_run = "boom"});
  std::ostringstream machines, people;
  std::atomic<bool> stop{false};
  {
    cli::Reporter reporter(true, machines, people, {});
    EXPECT_THROW(cli::run_on_pool(server->endpoint(), {.submission = submission(2)}, reporter, stop), Error);
    EXPECT_NO_THROW(cli::run_on_pool(server->endpoint(), {.submission = submission(1)}, reporter, stop));
  }
  EXPECT_THAT(machines.str(), HasSubstr(R"({"error":"node 'b' failed)"));
  EXPECT_THAT(machines.str(), HasSubstr(R"("event":"finished")"));
}

TEST_F(PoolTest, RunOnPoolStopsTheRunWhenAsked) {
  add_agents(1, {.endless = true});
  std::ostringstream machines, people;
  std::atomic<bool> stop{false};
  cli::Reporter reporter(true, machines, people, {});
  const cli::RunOnPool run{.submission = submission(1), .check = [&] { stop = true; }};  // once it is watched
  EXPECT_THROW(cli::run_on_pool(server->endpoint(), run, reporter, stop), Interrupted);
  EXPECT_THAT(machines.str(), HasSubstr("interrupted"));
}

// The scheduler drops and counts bytes that are no messages, and goes on serving others.
TEST_F(PoolTest, NoiseDoesNotDisturbTheScheduler) {
  zmq::context_t context;
  zmq::socket_t noise(context, zmq::socket_type::dealer);
  noise.connect(server->endpoint());
  Rng rng(3);
  const std::string good =
      comm::control::encode(comm::control::ToSchedulerMessage(scheduler::test::registration("noise")));
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = good.substr(0, rng.below(static_cast<uint32_t>(good.size() / 2)));
    if (i % 2 == 0)
      for (char& c : bytes) c = static_cast<char>(rng.next());
    noise.send(zmq::buffer(bytes), i % 3 == 0 ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  add_agents(1);
  EXPECT_EQ(watch(client.submit(submission(1))).state, RunState::Finished);
}

// Programs of another release: each side says which versions meet, and what to do.
TEST_F(PoolTest, AnAgentOfAnotherVersionIsToldInItsOwn) {
  using namespace comm::control;  // NOLINT(google-build-using-namespace)
  zmq::context_t context;
  for (const int version : {kOldestControlVersion - 1, kControlVersion + 1}) {
    const auto theirs = static_cast<uint16_t>(version);
    zmq::socket_t other(context, zmq::socket_type::dealer);
    other.set(zmq::sockopt::linger, 0);
    other.set(zmq::sockopt::rcvtimeo, 60'000);
    other.connect(server->endpoint());
    other.send(zmq::buffer(scheduler::test::register_as(theirs)));
    zmq::message_t answer;
    ASSERT_TRUE(other.recv(answer));
    const FromScheduler* root = flatbuffers::GetRoot<FromScheduler>(answer.data());
    EXPECT_EQ(root->version(), theirs) << "else it would not read it";
    ASSERT_NE(root->body_as_Refused(), nullptr);
    EXPECT_EQ(
        root->body_as_Refused()->reason()->str(),
        fmt::format(
            "it speaks versions {} to {} of the protocol, you speak {}: use releases that follow each other",
            kOldestControlVersion, kControlVersion, version));
  }
  EXPECT_TRUE(client.nodes().nodes.empty());
}

TEST(AgentTest, ASchedulerOfAnotherVersionIsLeft) {
  using namespace comm::control;  // NOLINT(google-build-using-namespace)
  for (const int version : {kOldestControlVersion - 1, kControlVersion + 1}) {
    zmq::context_t context;
    zmq::socket_t scheduler(context, zmq::socket_type::router);
    scheduler.set(zmq::sockopt::linger, 0);
    scheduler.set(zmq::sockopt::rcvtimeo, 60'000);
    scheduler.bind("tcp://127.0.0.1:*");
    TestAgent agent(scheduler.get(zmq::sockopt::last_endpoint), "a", {});
    zmq::message_t peer, message;
    ASSERT_TRUE(scheduler.recv(peer));
    ASSERT_TRUE(scheduler.recv(message));
    scheduler.send(peer, zmq::send_flags::sndmore);
    scheduler.send(zmq::buffer(encode(FromSchedulerMessage(AliveT{}), static_cast<uint16_t>(version))));
    wait_until([&] { return agent.ended.load(); });
    EXPECT_THAT(agent.refusal,
                HasSubstr(fmt::format(
                    "sent a control message of version {}, this program speaks {} to {}: use releases that",
                    version, kOldestControlVersion, kControlVersion)));
  }
}

// Whoever knows an address may not have the file.
TEST(ServerTest, ARunNamesOnlyWhatItsKeyHasSent) {
  namespace msg = comm::control;
  const std::filesystem::path folder = testing::TempDir() + "modelet_server_test";
  std::filesystem::remove_all(folder);
  const comm::KeyPair own = comm::make_key_pair(), alice = comm::make_key_pair(),
                      mallory = comm::make_key_pair();
  const auto find = [&](const std::string& key) {
    return comm::Identity{comm::Role::kUser, key == alice.public_key ? "alice" : "mallory"};
  };
  scheduler::Server server(
      {.keys = msg::ServerKeys{own, {}, find}, .data = comm::DataServerOptions{.store = folder}});
  std::jthread thread([&] { server.run(); });
  comm::ContentStore store(folder, 1 << 20, "--limit");
  const std::vector<std::byte> file(10'000);
  const comm::Manifest manifest = comm::Manifest::of(file);
  store.open(manifest);
  store.note_sender(manifest.id(), "alice");
  const std::string address = to_text(manifest.id());
  // Returns why a submission is refused; empty if it is not.
  const auto refusal = [&](const comm::KeyPair& key, const std::function<void(msg::SubmitT&)>& name) {
    msg::ClientSocket client({server.endpoint(), comm::ClientKeys{key, own.public_key}});
    std::optional<msg::FromSchedulerMessage> answer;
    for (bool sent = false; !answer; answer = client.receive(0.01)) {
      msg::SubmitT submit = scheduler::test::submission(1);
      name(submit);
      sent = sent || client.send(std::move(submit));
    }
    const auto* refused = std::get_if<msg::RefusedT>(&*answer);
    return refused == nullptr ? "" : refused->reason;
  };
  const auto as_data = [&](msg::SubmitT& submit) { submit.train_data = submit.test_data = address; };
  const auto as_snapshot = [&](msg::SubmitT& submit) {
    submit.resume_files =
        msg::to_table({.step = 1, .files = {{"index.json", manifest.id(), file.size(), {""}}}});
  };
  const std::string why = "the key 'mallory' has not sent data " + address;
  EXPECT_THAT(refusal(mallory, as_data), HasSubstr(why));
  EXPECT_THAT(refusal(mallory, as_snapshot), HasSubstr(why));
  EXPECT_EQ(refusal(alice, as_data), "");
  EXPECT_EQ(refusal(alice, as_snapshot), "");
  EXPECT_EQ(refusal(mallory, [](msg::SubmitT&) {}), "");
  server.request_stop();
  thread.join();
  std::filesystem::remove_all(folder);
}

TEST(PoolClientTest, NobodyAnswers) {
  try {
    PoolClient("tcp://127.0.0.1:9").list();
    FAIL() << "an answer from nobody";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no scheduler answers at tcp://127.0.0.1:9"));
  }
  EXPECT_THROW(PoolClient("nonsense"), UsageError);
}

// A scheduler that ends with a question unanswered. The next one, at the same address, answers. Both note the
// tokens of submissions.
class ForgetfulScheduler {
 public:
  ForgetfulScheduler() {
    thread_ = std::thread([this] {
      question();
      const std::string endpoint = socket_->endpoint();
      socket_.reset();
      socket_ = std::make_unique<comm::control::ServerSocket>(endpoint);
      while (!ended_)
        if (const auto asked = heard()) answer(*asked);
    });
  }
  ~ForgetfulScheduler() {
    ended_ = true;
    thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  std::vector<uint64_t> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  void question() {
    while (!heard() && !ended_) {
    }
  }
  std::optional<comm::control::ServerSocket::Received> heard() {
    auto asked = socket_->receive(0.01);
    const auto* submit = asked ? std::get_if<comm::control::SubmitT>(&asked->message) : nullptr;
    const std::lock_guard lock(mutex_);
    if (submit != nullptr) tokens_.push_back(submit->token);
    return asked;
  }
  void answer(const comm::control::ServerSocket::Received& asked) {
    if (const auto* submit = std::get_if<comm::control::SubmitT>(&asked.message))
      socket_->send(asked.peer, comm::control::AcceptedT{{}, 7, submit->token});
    else
      socket_->send(asked.peer, comm::control::NodeListT{});
  }
  mutable std::mutex mutex_;
  std::vector<uint64_t> tokens_;  // guarded by mutex_
  std::atomic<bool> ended_{false};
  std::unique_ptr<comm::control::ServerSocket> socket_ =
      std::make_unique<comm::control::ServerSocket>("tcp://127.0.0.1:*");
  const std::string endpoint_ = socket_->endpoint();
  std::thread thread_;
};

TEST(PoolClientTest, AsksAgainAfterALostConnection) {
  const ForgetfulScheduler scheduler;
  EXPECT_TRUE(PoolClient(scheduler.endpoint()).nodes().nodes.empty());
}

TEST(PoolClientTest, ASubmissionThatIsSentAgainHasTheSameToken) {
  const ForgetfulScheduler scheduler;
  PoolClient client(scheduler.endpoint());
  EXPECT_EQ(client.submit(submission(1)), 7u);
  EXPECT_EQ(client.submit(submission(1)), 7u);
  const std::vector<uint64_t> tokens = scheduler.tokens();
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0], tokens[1]) << "the first was sent twice";
  EXPECT_NE(tokens[0], tokens[2]);
  EXPECT_NE(tokens[0], 0u);
}

TEST(ServerTest, RefusesToListenWithoutKeys) {
  for (const char* listen : {"tcp://0.0.0.0:*", "tcp://127.0.0.1:*"}) {
    EXPECT_THROW(scheduler::Server({.listen = listen}), UsageError) << listen;
    EXPECT_NO_THROW(scheduler::Server({.listen = listen, .insecure = true})) << listen;
  }
  const scheduler::Server first({.listen = "tcp://127.0.0.1:*", .insecure = true});
  EXPECT_THROW(scheduler::Server({.listen = first.endpoint(), .insecure = true}), Error)
      << "the address is in use";
}

// Agents may send heartbeats rarely. Watchers must still hear from the scheduler.
TEST(ServerTest, TellsWatchersEverySecondWhateverTheHeartbeat) {
  scheduler::ServerOptions options{.listen = "tcp://127.0.0.1:*", .insecure = true};
  options.core.heartbeat = 60;
  options.core.dead_after = 180;
  scheduler::Server server(options);
  std::thread thread([&server] { server.run(); });
  PoolClient client(server.endpoint());
  cli::Submission waiting = submission(1);  // there is no node
  waiting.wait = true;
  const uint64_t run = client.submit(waiting);
  int heard = 0;
  const Stopwatch watch;
  client.watch(run, {.on_status = [&heard](const RunStatusT&) { ++heard; },
                     .detach = [&] { return heard > 2 || watch.seconds() > 30; }});
  server.request_stop();
  thread.join();
  EXPECT_GT(heard, 2);
}

TEST(AgentTest, RefusesABadDataAddress) {
  const auto make = [](const std::string& address, bool insecure) {
    agent::Agent({.name = "a", .data_address = address, .insecure = insecure});
  };
  EXPECT_NO_THROW(make("127.0.0.2", true));
  EXPECT_THROW(make("127.0.0.1", false), UsageError) << "every user of the machine could connect";
  EXPECT_THROW(make("192.0.2.7", false), UsageError);
  for (const char* wrong : {"0.0.0.0", "[::]", "*", "192.0.2.7", "office-17.invalid", "::1"})
    EXPECT_THROW(make(wrong, true), UsageError) << wrong;
}

}  // namespace
}  // namespace modelet
