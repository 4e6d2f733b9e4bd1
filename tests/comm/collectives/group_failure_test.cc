// What goes wrong between ranks: silence, death, interruption, strangers, old epochs, damage, loss.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/fmt/fmt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <semaphore>
#include <zmq.hpp>

#include "base/error.h"
#include "comm/wire/envelope.h"
#include "comm/wire/envelope_generated.h"
#include "tests/comm/collectives/faulty_transport.h"
#include "tests/comm/groups.h"

namespace modelet::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::make_groups;
using testing::make_transports;
using testing::run_ranks;
using testing::send_bytes;
using testing::TransportKind;

template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing thrown";
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Calls barriers of new steps until `done`, for messages that are still on their way through the kernel.
void barriers_until(Group& group, const std::function<bool()>& done) {
  for (uint64_t step = 1000; step < 1200 && !done(); ++step) EXPECT_THROW(group.barrier({step}), PeerError);
  EXPECT_TRUE(done());
}

class Failures : public ::testing::TestWithParam<TransportKind> {};

TEST_P(Failures, TimeoutNamesTheMissingRank) {
  GroupOptions options{.timeout_seconds = 0.01, .node_names = {"worker-1", "worker-2", "worker-3"}};
  auto transports = make_transports(GetParam(), 3, options);
  Group one(std::move(transports[1]), options);
  EXPECT_THROW(one.barrier({117, 1}), PeerError);  // but its message is sent
  // Over ZeroMQ the message of rank 1 may still be on its way.
  const bool inproc = GetParam() == TransportKind::kInproc;
  options.timeout_seconds = inproc ? 0.25 : 2;
  Group zero(std::move(transports[0]), options);
  const std::vector<std::vector<InBlock>> nothing(3);
  try {
    zero.all_gather({117, 1}, {}, nothing);
    FAIL();
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank(), 2);
    EXPECT_EQ(error.what(),
              std::string("no message from rank 2 (node worker-3) within ") + (inproc ? "0.25" : "2") +
                  " s, at step 117, round 1 (all-gather): the node is dead, cut off or too slow");
  }
}

// The group goes on waiting, says when the rank is found, and reports it again if it misses it a second time.
TEST_P(Failures, ASilentRankIsMissedOnceAndWaitedFor) {
  std::counting_semaphore<> missed(0);
  std::vector<std::string> why;
  int found = 0;
  GroupOptions options{
      .timeout_seconds = 60, .missing_seconds = 0.02, .node_names = {"worker-1", "worker-2"}};
  auto transports = make_transports(GetParam(), 2, options);
  Group late(std::move(transports[1]), options);
  options.on_missing = [&](int rank, const std::string& reason) {
    EXPECT_EQ(rank, 1);
    why.push_back(reason);
    missed.release();
  };
  options.on_found = [&](int rank) {
    EXPECT_EQ(rank, 1);
    EXPECT_EQ(static_cast<size_t>(++found), why.size());
  };
  Group waits(std::move(transports[0]), options);
  std::thread other([&] {
    for (const uint64_t step : {uint64_t{1}, uint64_t{2}}) {
      missed.acquire();
      late.barrier({step});
    }
  });
  waits.barrier({1});
  waits.barrier({2});
  other.join();
  ASSERT_EQ(why.size(), 2u);
  EXPECT_EQ(why[0], "rank 1 (node worker-2) is silent, at step 1, round 0 (barrier)");
  EXPECT_EQ(found, 2);
}

// Something else has arrived from the rank, but not what the operation waits for.
TEST_P(Failures, ARankThatIsHeardButStaysBehindIsMissedAgain) {
  std::counting_semaphore<> missed(0);
  std::atomic<int> reports = 0, found = 0;
  GroupOptions options{.timeout_seconds = 60, .missing_seconds = 0.02};
  auto transports = make_transports(GetParam(), 2, options);
  Group late(std::move(transports[1]), options);
  options.on_missing = [&](int, const std::string&) {
    ++reports;
    missed.release();
  };
  options.on_found = [&](int) { ++found; };
  Group waits(std::move(transports[0]), options);
  const std::byte own{1};
  std::byte theirs{};
  const OutBlock out{.bytes = std::span(&own, 1)};
  std::thread other([&] {
    for (const uint16_t round : {0, 1}) {
      missed.acquire();
      late.send_all({1, round}, std::span(&out, 1));
    }
  });
  std::vector<std::vector<InBlock>> into(2);
  into[1].push_back(std::span(&theirs, 1));
  waits.collect({1, 1}, into);
  other.join();
  EXPECT_EQ(theirs, own);
  EXPECT_EQ(reports, 2);
  EXPECT_EQ(found, 2);
}

// A rank that may come late is neither missed nor given up.
TEST_P(Failures, PatienceIsLonger) {
  GroupOptions options{.timeout_seconds = 0.05, .missing_seconds = 0.02};
  auto transports = make_transports(GetParam(), 2, options);
  Group late(std::move(transports[1]), options);
  bool is_missed = false;
  options.on_missing = [&](int, const std::string&) { is_missed = true; };
  Group waits(std::move(transports[0]), options);
  const std::byte own{1};
  std::byte theirs{};
  const OutBlock out{.bytes = std::span(&own, 1)};
  const auto all_gather = [&](Group& group, std::byte& into) {
    std::vector<std::vector<InBlock>> blocks(2);
    blocks[group.rank() == 0 ? 1 : 0].push_back(std::span(&into, 1));
    group.all_gather({1}, std::span(&out, 1), blocks, 1e4);
  };
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::byte unused{};
    all_gather(late, unused);
  });
  EXPECT_NO_THROW(all_gather(waits, theirs));
  other.join();
  EXPECT_EQ(theirs, own);
  EXPECT_FALSE(is_missed);
}

// The rank is reported long before the time-out of the operation.
TEST_P(Failures, ARankWhoseConnectionEndsIsMissedAtOnce) {
  if (GetParam() == TransportKind::kInproc) GTEST_SKIP() << "has no connections";
  std::string why;
  GroupOptions options{.timeout_seconds = 600, .missing_seconds = 600};
  auto transports = make_transports(GetParam(), 2, options);
  auto dies = std::make_unique<Group>(std::move(transports[1]), options);
  Group* group = nullptr;
  options.on_missing = [&](int rank, const std::string& reason) {
    EXPECT_EQ(rank, 1);
    why = reason;
    group->interrupt("the scheduler has decided");
  };
  Group waits(std::move(transports[0]), options);
  group = &waits;
  std::binary_semaphore passed(0);
  std::thread other([&] {
    dies->barrier({1});
    passed.acquire();
    dies.reset();
  });
  waits.barrier({1});
  passed.release();
  EXPECT_EQ(message_of<Interrupted>([&] { waits.barrier({2}); }), "the scheduler has decided");
  other.join();
  EXPECT_THAT(why, HasSubstr("rank 1 has closed its connection, at step 2"));
}

TEST_P(Failures, InterruptFromAnotherThread) {
  auto groups = make_groups(GetParam(), 2, {.timeout_seconds = 60});
  std::thread other([&] { groups[0]->interrupt("stopped by the user"); });
  EXPECT_EQ(message_of<Interrupted>([&] { groups[0]->barrier({1}); }), "stopped by the user");
  other.join();
  groups[0]->interrupt("again");
  EXPECT_EQ(message_of<Interrupted>([&] { groups[0]->barrier({2}); }), "stopped by the user");
}

// A group of one has nothing to receive, but can still be interrupted.
TEST_P(Failures, InterruptAGroupOfOne) {
  auto groups = make_groups(GetParam(), 1, {});
  groups[0]->barrier({1});
  groups[0]->interrupt("stopped by the user");
  EXPECT_EQ(message_of<Interrupted>([&] { groups[0]->barrier({2}); }), "stopped by the user");
}

// Each of the two ranks says whose release differs, and how.
TEST_P(Failures, ARankOfAnotherVersionIsRefused) {
  const GroupOptions options{.timeout_seconds = 60, .node_names = {"worker-1", "worker-2"}};
  wire::EnvelopeT old;
  old.version = kWireVersion - 1;
  flatbuffers::FlatBufferBuilder builder;
  wire::FinishEnvelopeBuffer(builder, wire::Envelope::Pack(builder, &old));
  auto transports = make_transports(GetParam(), 2, options);
  std::vector<std::unique_ptr<Group>> groups;
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    send_bytes(*transports[rank], static_cast<int>(1 - rank),
               std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())), {});
    groups.push_back(std::make_unique<Group>(std::move(transports[rank]), options));
  }
  for (const size_t rank : {size_t{0}, size_t{1}})
    EXPECT_THAT(message_of<FormatError>([&] { groups[rank]->barrier({1}); }),
                AllOf(HasSubstr(options.node_names[1 - rank]),
                      HasSubstr(fmt::format("wire version {}, this program speaks {}: run the same release",
                                            kWireVersion - 1, kWireVersion))));
}

TEST_P(Failures, OtherRunsAndEpochsAreDropped) {
  for (const auto& [run, epoch] :
       {std::pair(uint64_t{6}, 2u), std::pair(uint64_t{5}, 1u), std::pair(uint64_t{5}, 3u)}) {
    const GroupOptions mine{.run = 5, .epoch = 2, .timeout_seconds = 0.05};
    const GroupOptions other{.run = run, .epoch = epoch, .timeout_seconds = 0.01};
    std::vector<std::unique_ptr<Transport>> transports;
    if (GetParam() == TransportKind::kInproc) {
      transports = make_inproc_transports(2);
    } else {
      const ZmqOptions socket{.curve = GetParam() == TransportKind::kCurve};
      auto a = std::make_unique<ZmqTransport>(socket), b = std::make_unique<ZmqTransport>(socket);
      const Peer peers[] = {a->self(), b->self()};
      a->connect(0, peers, mine.run, mine.epoch);
      b->connect(1, peers, other.run, other.epoch);
      transports.push_back(std::move(a));
      transports.push_back(std::move(b));
    }
    Group zero(std::move(transports[0]), mine), one(std::move(transports[1]), other);
    EXPECT_THROW(one.barrier({1000}), PeerError);
    EXPECT_THROW(one.barrier({1001}), PeerError);
    barriers_until(zero, [&] { return zero.meters().dropped_messages >= 2; });
  }
}

TEST_P(Failures, DamagedMessageIsAFormatErrorThatNamesThePeer) {
  const GroupOptions options{.run = 5, .node_names = {"a", "b"}};
  auto transports = make_transports(GetParam(), 2, options);
  std::unique_ptr<Transport> evil = std::move(transports[1]);
  Group group(std::move(transports[0]), options);
  const auto refusal = [&](uint64_t step) { return message_of<FormatError>([&] { group.barrier({step}); }); };

  send_bytes(*evil, 0, bytes_of("a message of no kind at all"), {});
  EXPECT_THAT(refusal(1),
              AllOf(HasSubstr("rank 1 (node b), at step 1"), HasSubstr("not a valid Modelet envelope")));

  Envelope envelope{.run = 5, .epoch = 1, .tag = {2}, .sender = 1};
  EnvelopeWriter writer;
  envelope.payload_hash = payload_hash({}) + 1;
  send_bytes(*evil, 0, writer.write(envelope), {});
  EXPECT_THAT(refusal(2), HasSubstr("checksum"));

  envelope.tag = {3};
  envelope.payload_hash = payload_hash(bytes_of("1234"));
  envelope.raw_bytes = 4;
  envelope.blocks = {{1, 1, 0, 4}};
  send_bytes(*evil, 0, writer.write(envelope), bytes_of("1234"));
  EXPECT_THAT(refusal(3), HasSubstr("1 blocks, expected 0"));

  float value = 0;
  const std::vector<std::vector<InBlock>> one_value = {{}, {Matrix{&value, 1, 1, 1}}};
  std::array<std::byte, 4> four;
  std::array<std::byte, 3> three;
  const std::vector<std::vector<InBlock>> four_bytes = {{}, {four}}, three_bytes = {{}, {three}};
  const BlockHeader value_header{1, 1, 0, 4}, bytes_header{0, 0, kBytesBlock, 4};
  const auto gather = [&](const BlockHeader& header, const std::vector<std::vector<InBlock>>& expected) {
    envelope.tag.step++;
    envelope.blocks = {header};
    send_bytes(*evil, 0, writer.write(envelope), bytes_of("1234"));
    return message_of<FormatError>([&] { group.all_gather(envelope.tag, {}, expected); });
  };
  for (const BlockHeader& wrong :
       {BlockHeader{2, 1, 0, 4}, BlockHeader{1, 1, 250, 4}, BlockHeader{1, 1, 1, 4}, bytes_header})
    EXPECT_NE(gather(wrong, one_value), "nothing thrown");
  EXPECT_THAT(gather(value_header, four_bytes), HasSubstr("expected 4 plain bytes"));
  EXPECT_THAT(gather(bytes_header, three_bytes), HasSubstr("expected 3 plain bytes"));
  EXPECT_EQ(gather(bytes_header, four_bytes), "nothing thrown");
  // A message in the name of another rank does not count as a message of that rank.
  envelope = {.run = 5, .epoch = 1, .tag = {20}, .sender = 0, .payload_hash = payload_hash({})};
  send_bytes(*evil, 0, writer.write(envelope), {});
  envelope.sender = 1;
  send_bytes(*evil, 0, writer.write(envelope), {});
  EXPECT_EQ(refusal(20), "nothing thrown");
  EXPECT_EQ(group.meters().dropped_messages, 1u);
}

TEST_P(Failures, APeerTooFarAheadIsStopped) {
  GroupOptions options{.timeout_seconds = 0.01};
  auto transports = make_transports(GetParam(), 3, options);
  Group one(std::move(transports[1]), options);
  for (uint64_t step = 1; step <= 4; ++step) EXPECT_THROW(one.barrier({step}), PeerError);
  options.timeout_seconds = 60;
  options.max_waiting_messages = 2;
  Group zero(std::move(transports[0]), options);
  EXPECT_THAT(message_of<PeerError>([&] { zero.barrier({1}); }), HasSubstr("rank 1 is too far ahead"));
}

TEST_P(Failures, MessagesTooLargeToSendAreRefused) {
  auto groups = make_groups(GetParam(), 2, {.max_message_bytes = 1000});
  std::vector<float> values(251);
  EXPECT_THAT(message_of<Error>([&] {
                groups[0]->all_reduce_sum({1}, {values.data(), 1, values.size(), values.size()},
                                          codec_of(CodecKind::kNone));
              }),
              HasSubstr("over the limit of 1000 bytes"));
}

// On links that lose, duplicate and reorder messages, every step that is retried until all ranks succeed
// gives the right sum.
TEST_P(Failures, RetriedStepsAreRightOverFaultyLinks) {
  const GroupOptions options{.timeout_seconds = 0.03};
  for (const uint64_t seed : {1, 2}) {
    std::vector<std::unique_ptr<Group>> groups;
    for (auto& transport : make_transports(GetParam(), 3, options))
      groups.push_back(
          std::make_unique<Group>(std::make_unique<testing::FaultyTransport>(
                                      std::move(transport), testing::Faults{seed, 0.03f, 0.1f, 0.03f}),
                                  options));
    std::barrier agree(3);
    std::atomic<bool> failed{false};
    std::atomic<int> retries{0};
    run_ranks(groups, [&](Group& group) {
      Tag tag;
      for (tag.step = 1; tag.step <= 40; ++tag.step) {
        for (tag.round = 0;; ++tag.round) {
          // The sum is exact, so that any stale or doubled contribution would show.
          float value = static_cast<float>(tag.step * 100 + static_cast<uint64_t>(group.rank()));
          try {
            group.all_reduce_sum(tag, {&value, 1, 1, 1}, codec_of(CodecKind::kNone));
            EXPECT_EQ(value, static_cast<float>(tag.step * 300 + 3));
          } catch (const PeerError&) {
            failed = true;
          }
          agree.arrive_and_wait();
          const bool again = failed;
          agree.arrive_and_wait();
          failed = false;
          agree.arrive_and_wait();
          if (!again) break;
          ++retries;
        }
      }
    });
    EXPECT_GT(retries, 0) << "no fault hit: the test proves nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Failures,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kZmq,
                                           TransportKind::kCurve),
                         [](const auto& test) { return testing::name_of(test.param); });

TEST(InprocTransport, AQueueNobodyReadsIsAPeerError) {
  auto transports = make_inproc_transports(2, 3);
  for (int i = 0; i < 3; ++i) send_bytes(*transports[0], 1, {}, {});
  EXPECT_THAT(message_of<PeerError>([&] { send_bytes(*transports[0], 1, {}, {}); }),
              HasSubstr("3 messages unread"));
}

TEST(ZmqTransport, AQueueNobodyReadsIsAPeerError) {
  ZmqTransport sender({.linger_seconds = 0, .queue_messages = 10});
  const Peer peers[] = {{}, {"tcp://127.0.0.1:1"}};  // no process listens there
  sender.connect(0, peers, 1, 1);
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) send_bytes(sender, 1, bytes_of("x"), {});
      },
      PeerError);
}

TEST(ZmqTransport, BadAddresses) {
  EXPECT_THROW(ZmqTransport({.bind = "nonsense"}), Error);
  EXPECT_THROW(ZmqTransport({.bind = "tcp://0.0.0.0:*"}), UsageError);
  ZmqTransport taken;
  EXPECT_THROW(ZmqTransport({.bind = taken.self().endpoint}), Error);
  const Peer peers[] = {{}, {"nonsense"}};
  EXPECT_THAT(message_of<Error>([&] { taken.connect(0, peers, 1, 1); }), HasSubstr("rank 1: 'nonsense'"));
}

TEST(ZmqTransport, SendingBeforeThePeerConnectsAndLeavingAtOnceLosesNothing) {
  ZmqTransport receiver;
  {
    ZmqTransport sender({.linger_seconds = 60});
    const Peer peers[] = {receiver.self(), sender.self()};
    sender.connect(1, peers, 1, 1);
    for (int i = 0; i < 50; ++i) send_bytes(sender, 0, bytes_of("early"), std::vector<std::byte>(100'000));
  }
  const Peer peers[] = {receiver.self(), {"tcp://127.0.0.1:1"}};
  receiver.connect(0, peers, 1, 1);
  Frame frame;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(receiver.receive(60, frame));
    EXPECT_EQ(frame.from, 1);
    EXPECT_EQ(frame.envelope.size(), 5u);
    EXPECT_EQ(frame.payload.size(), 100'000u);
  }
}

TEST(ZmqTransport, StrangersAreDropped) {
  ZmqTransport transport({.max_message_bytes = 1000});
  const Peer peers[] = {transport.self(), {"tcp://127.0.0.1:1"}};
  transport.connect(0, peers, 1, 1);
  zmq::context_t context;
  const auto send = [&](const std::string& id, const std::vector<std::string>& parts) {
    zmq::socket_t socket(context, zmq::socket_type::push);
    socket.connect(transport.self().endpoint);
    socket.send(zmq::buffer(id), zmq::send_flags::sndmore);
    for (size_t i = 0; i < parts.size(); ++i)
      socket.send(zmq::buffer(parts[i]),
                  i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    socket.set(zmq::sockopt::linger, 60'000);
  };
  const std::string peer_id = "0000000000000001/1/1";
  send("", {"a", "b"});                      // no name
  send("0000000000000001/1/0", {"a", "b"});  // the own name
  send("0000000000000001/2/1", {"a", "b"});  // another epoch
  send("0000000000000001/1/2", {"a", "b"});  // rank 2 of 2
  send(peer_id, {"a"});                      // one part too few
  Frame frame;
  while (transport.dropped_messages() < 5) ASSERT_FALSE(transport.receive(0.01, frame));
  send(peer_id, {"a", "b", "c", "d"});  // two parts too many
  while (transport.dropped_messages() < 6) ASSERT_FALSE(transport.receive(0.01, frame));
  send(peer_id, {"a", std::string(1001, 'x')});  // too long: ZeroMQ closes the connection
  EXPECT_FALSE(transport.receive(0.1, frame));
  EXPECT_EQ(transport.dropped_messages(), 6u);
}

TEST(ZmqTransport, APeerKilledForRealIsAPeerError) {
  int to_child[2], from_child[2];
  ASSERT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(from_child, O_CLOEXEC), 0);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, from_child[1], STDOUT_FILENO);
  char path[] = COMM_PEER_PROGRAM;
  char* arguments[] = {path, nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, path, &files, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&files);

  auto transport = std::make_unique<ZmqTransport>(ZmqOptions{.linger_seconds = 0});
  const std::string line = transport->self().endpoint + "\n";
  ASSERT_EQ(::write(to_child[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  Peer peers[2];
  for (char c = 0; ::read(from_child[0], &c, 1) == 1 && c != '\n';) peers[1].endpoint += c;
  transport->connect(0, peers, 5, 1);
  GroupOptions options{.run = 5, .timeout_seconds = 2, .node_names = {"here", "victim"}};
  Group group(std::move(transport), options);
  for (uint64_t step = 1; step <= 3; ++step) group.barrier({step});

  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  for (const int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) ::close(fd);
  EXPECT_THAT(message_of<PeerError>([&] {
                group.barrier({4});  // it may have sent this one before it died
                group.barrier({5});
              }),
              HasSubstr("rank 1 (node victim)"));
}

}  // namespace
}  // namespace modelet::comm
