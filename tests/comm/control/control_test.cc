// Control messages: round trip, mutated bytes, loopback rule.
#include "comm/control/control.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "tests/comm/control/samples.h"
#include "tests/error_of.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::comm::control {
namespace {

using test::error_of;

constexpr double kLimit = 60;  // seconds

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Control, MessagesSurviveTheRoundTrip) {
  const auto back =
      decode_to_scheduler(bytes_of(encode(ToSchedulerMessage(scheduler::test::submission(3, "x")))));
  const auto& submit = std::get<SubmitT>(back);
  EXPECT_EQ(submit.name, "x");
  EXPECT_EQ(submit.nodes, 3u);
  EXPECT_EQ(submit.shape->labels, 500u);
  EXPECT_EQ(submit.experiment, scheduler::test::submission(3).experiment);

  PrepareT prepare;
  prepare.run = 7;
  prepare.owner = {0, 1, 2, 1};
  prepare.node_names = {"a", "b", "c"};
  const auto other = decode_from_scheduler(bytes_of(encode(FromSchedulerMessage(prepare))));
  EXPECT_EQ(std::get<PrepareT>(other).owner, prepare.owner);
  EXPECT_EQ(std::get<PrepareT>(other).node_names, prepare.node_names);
}

TEST(Control, ChunksSurviveTheRoundTrip) {
  std::vector<uint8_t> chunk(1 << 20);
  for (size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<uint8_t>(i % 251);
  const auto put = decode_to_scheduler(bytes_of(encode(ToSchedulerMessage(PutChunkT{{}, "data", 5, chunk}))));
  EXPECT_EQ(std::get<PutChunkT>(put).bytes, chunk);
  const auto sent =
      decode_from_scheduler(bytes_of(encode(FromSchedulerMessage(ChunkT{{}, "data", 5, chunk}))));
  EXPECT_EQ(std::get<ChunkT>(sent).bytes, chunk);
  EXPECT_EQ(std::get<ChunkT>(sent).chunk, 5u);
  const auto wanted =
      decode_from_scheduler(bytes_of(encode(FromSchedulerMessage(WantedT{{}, "data", {1, 7}}))));
  EXPECT_EQ(std::get<WantedT>(wanted).chunks, (std::vector<uint32_t>{1, 7}));
}

TEST(Control, AnotherPortOfTheSameHost) {
  EXPECT_EQ(with_port("tcp://192.168.1.5:5570", 77).endpoint, "tcp://192.168.1.5:77");
  EXPECT_EQ(with_port("tcp://[::1]:5570", 77).endpoint, "tcp://[::1]:77");
  EXPECT_THROW(with_port("ipc:///tmp/x", 77), UsageError);
}

TEST(Control, EmptyMessagesKeepTheirKind) {
  EXPECT_TRUE(
      std::holds_alternative<LeaveT>(decode_to_scheduler(bytes_of(encode(ToSchedulerMessage(LeaveT{}))))));
  EXPECT_TRUE(std::holds_alternative<ListNodesT>(
      decode_to_scheduler(bytes_of(encode(ToSchedulerMessage(ListNodesT{}))))));
  EXPECT_TRUE(std::holds_alternative<AliveT>(
      decode_from_scheduler(bytes_of(encode(FromSchedulerMessage(AliveT{}))))));
}

TEST(Control, AMessageOfTheOtherDirectionIsRefused) {
  EXPECT_THROW(decode_from_scheduler(bytes_of(encode(ToSchedulerMessage(LeaveT{})))), FormatError);
}

// The version that is written in the bytes of a message.
uint16_t stamped(const ToSchedulerMessage& message) {
  return flatbuffers::GetRoot<ToScheduler>(encode(message).data())->version();
}

// Programs of the release before accept 9 only, and neither know nor get the newer messages.
TEST(Control, MessagesThatTheReleaseBeforeKnowsHaveItsVersion) {
  for (const ToSchedulerMessage& message : test::messages_to_scheduler()) {
    const bool is_new =
        std::holds_alternative<ApproveNodeT>(message) || std::holds_alternative<EnrolT>(message) ||
        std::holds_alternative<TraceRunT>(message);
    EXPECT_EQ(stamped(message), is_new ? kControlVersion : kOldestControlVersion) << message.index();
  }
  for (const FromSchedulerMessage& message : test::messages_from_scheduler()) {
    const bool is_new =
        std::holds_alternative<PendingT>(message) || std::holds_alternative<EnrolledT>(message) ||
        std::holds_alternative<TraceT>(message);
    EXPECT_EQ(flatbuffers::GetRoot<FromScheduler>(encode(message).data())->version(),
              is_new ? kControlVersion : kOldestControlVersion)
        << message.index();
  }
}

// As an agent of the release before registers: without the newer fields.
TEST(Control, MessagesOfTheOldestVersionAreAccepted) {
  const auto message = decode_to_scheduler(bytes_of(scheduler::test::register_as(kOldestControlVersion)));
  EXPECT_EQ(std::get<RegisterT>(message).name, "other");
  EXPECT_EQ(std::get<RegisterT>(message).protocol, 0);
  EXPECT_TRUE(std::holds_alternative<AliveT>(
      decode_from_scheduler(bytes_of(encode(FromSchedulerMessage(AliveT{}), kOldestControlVersion)))));
}

TEST(Control, AnotherVersionIsRefusedWithBothNumbers) {
  for (const int version : {kOldestControlVersion - 1, kControlVersion + 1}) {
    const std::string text = fmt::format(
        "control message of version {}, this program speaks {} to {}: use releases that follow each other",
        version, kOldestControlVersion, kControlVersion);
    const auto theirs = static_cast<uint16_t>(version);
    EXPECT_EQ(error_of([&] { decode_to_scheduler(bytes_of(scheduler::test::register_as(theirs))); }), text);
    const std::string answer = encode(FromSchedulerMessage(AliveT{}), theirs);
    EXPECT_EQ(error_of([&] { decode_from_scheduler(bytes_of(answer)); }), text);
  }
}

template <class Message>
void expect_each_kind(const std::vector<Message>& messages) {
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (size_t kind = 0; kind < messages.size(); ++kind) EXPECT_EQ(messages[kind].index(), kind);
}

TEST(Control, TheSamplesHaveEachKind) {
  expect_each_kind(test::messages_to_scheduler());
  expect_each_kind(test::messages_from_scheduler());
}

// Every prefix and many mutations give an error or a message, never a crash (this also runs under the
// sanitizers). Returns how many were refused.
size_t read_mutated(const std::string& good, const std::function<void(std::span<const std::byte>)>& read) {
  size_t refused = 0;
  const auto try_to_read = [&](const std::string& bytes) {
    try {
      read(bytes_of(bytes));
    } catch (const FormatError&) {
      ++refused;
    }
  };
  EXPECT_NO_THROW(read(bytes_of(good)));
  for (size_t size = 0; size < good.size(); ++size)
    try_to_read(good.substr(0, size));  // a buffer of its own: the sanitizer sees reads past its end
  Rng rng(7);
  for (int i = 0; i < 1000; ++i) {
    std::string mutated = good;
    for (uint32_t flips = 1 + rng.below(4); flips > 0; --flips)
      mutated[rng.below(static_cast<uint32_t>(std::min<size_t>(mutated.size(), 300)))] =
          static_cast<char>(rng.next());
    try_to_read(mutated);
  }
  return refused;
}

TEST(Control, MutatedMessagesOfEachKindAreRefusedOrRead) {
  for (auto& message : test::messages_to_scheduler()) {
    const size_t kind = message.index();
    EXPECT_GT(read_mutated(encode(std::move(message)), [](auto bytes) { decode_to_scheduler(bytes); }), 100u)
        << "kind " << kind;
  }
  for (auto& message : test::messages_from_scheduler()) {
    const size_t kind = message.index();
    EXPECT_GT(read_mutated(encode(std::move(message)), [](auto bytes) { decode_from_scheduler(bytes); }),
              100u)
        << "kind " << kind;
  }
}

// A vector of many strings that share one string in the message.
TEST(Control, AMessageThatUnpacksIntoGigabytesIsRefused) {
  const auto start_with = [](size_t strings, size_t length) {
    flatbuffers::FlatBufferBuilder builder;
    const std::vector<flatbuffers::Offset<flatbuffers::String>> same(
        strings, builder.CreateString(std::string(length, 'x')));
    const auto start = CreateStart(builder, 1, 1, builder.CreateVector(same));
    builder.Finish(CreateFromScheduler(builder, kControlVersion, FromSchedulerBody::Start, start.Union()),
                   "MCFS");
    return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
  };
  EXPECT_EQ(std::get<StartT>(decode_from_scheduler(bytes_of(start_with(1000, 1000)))).endpoints.size(),
            1000u);
  EXPECT_THROW(decode_from_scheduler(bytes_of(start_with(100000, 1000000))), FormatError);
  EXPECT_THROW(decode_from_scheduler(bytes_of(start_with(900000, 0))), FormatError);
}

TEST(Control, FilesThatUnpackIntoGigabytesAreRefused) {
  const auto held_with = [](size_t files, size_t holders, size_t length) {
    flatbuffers::FlatBufferBuilder builder;
    const auto name = builder.CreateString(std::string(length, 'x'));
    const auto same_holders = builder.CreateVector(std::vector(holders, name));
    const auto file = CreateSnapshotFile(builder, name, nullptr, 1, same_holders);
    const auto held =
        CreateSnapshotHeld(builder, 1, 1, 1, 0, false, builder.CreateVector(std::vector(files, file)));
    builder.Finish(CreateToScheduler(builder, kControlVersion, ToSchedulerBody::SnapshotHeld, held.Union()),
                   "MCTS");
    return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
  };
  EXPECT_EQ(std::get<SnapshotHeldT>(decode_to_scheduler(bytes_of(held_with(100, 8, 100)))).files.size(),
            100u);
  EXPECT_THROW(decode_to_scheduler(bytes_of(held_with(60'000, 1, 1000))), FormatError);
  EXPECT_THROW(decode_to_scheduler(bytes_of(held_with(1000, 1000, 0))), FormatError);
  EXPECT_THROW(decode_to_scheduler(bytes_of(held_with(900'000, 0, 0))), FormatError);
}

TEST(Control, ASnapshotTravelsWhole) {
  const comm::Snapshot snapshot{
      .epoch = 3,
      .step = 1600,
      .keep = true,
      .files = {{"index.json", content_id({}), 4711, {"alpha", ""}}, {"output.safetensors", {}, 0, {}}}};
  PrepareT prepare;
  prepare.snapshot = to_table(snapshot);
  const std::string bytes = encode(FromSchedulerMessage(std::move(prepare)));
  EXPECT_EQ(snapshot_of(*std::get<PrepareT>(decode_from_scheduler(bytes_of(bytes))).snapshot), snapshot);
  SnapshotHeldT held;
  held.files = to_tables(snapshot.files);
  held.files[0]->name = "../index.json";
  EXPECT_THROW(snapshot_of(held), FormatError);
}

// The messages of a full pool are far below all limits.
TEST(Control, TheListsOfAFullPoolAreRead) {
  RunListT runs;
  for (uint64_t i = 0; i < 1000; ++i) {
    runs.runs.push_back(std::make_unique<RunStatusT>());
    runs.runs.back()->detail = std::string(1000, 'x');
    runs.runs.back()->node_names = std::vector<std::string>(100, "node-with-a-name");
  }
  EXPECT_EQ(std::get<RunListT>(decode_from_scheduler(bytes_of(encode(FromSchedulerMessage(std::move(runs))))))
                .runs.size(),
            1000u);
}

// The pacing rates of this process's TCP sockets, without those that have none.
std::vector<uint32_t> pacing_rates() {
  std::vector<uint32_t> rates;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    uint32_t rate = 0;
    socklen_t size = sizeof rate;
    const int descriptor = std::stoi(entry.path().filename());
    if (::getsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &size) == 0 && rate != UINT32_MAX)
      rates.push_back(rate);
  }
  return rates;
}

TEST(ClientSocket, PacesWhatItSends) {
  ServerSocket server("tcp://127.0.0.1:*", {}, Traffic::kChunks);
  ClientSocket client(server.endpoint(), Traffic::kChunks), other(server.endpoint(), Traffic::kChunks);
  const auto exchange = [&](ClientSocket& with) {
    while (!with.send(HeartbeatT{})) with.receive(0.01);
    const auto received = server.receive(kLimit);
    ASSERT_TRUE(received.has_value());
    server.send(received->peer, AliveT{});
    const Stopwatch watch;
    while (!with.receive(0.1)) ASSERT_LT(watch.seconds(), kLimit);
  };
  exchange(client);
  exchange(other);
  EXPECT_THAT(pacing_rates(), testing::IsEmpty());
  client.pace(2e6);
  exchange(client);
  EXPECT_THAT(pacing_rates(), testing::ElementsAre(2000000));
  client.pace(0);
  exchange(client);
  EXPECT_THAT(pacing_rates(), testing::IsEmpty());
}

// ZeroMQ would end the connection at such a message, and nobody would know why.
TEST(ServerSocket, SaysThatAnAnswerIsTooLarge) {
  for (const bool with_keys : {false, true}) {
    const KeyPair own = make_key_pair(), theirs = make_key_pair();
    std::optional<ServerKeys> keys;
    std::optional<ClientKeys> client_keys;
    if (with_keys) {
      keys = {own, "", [](const std::string&) { return Identity{Role::kUser, "alice"}; }};
      client_keys = {theirs, own.public_key};
    }
    ServerSocket server("tcp://127.0.0.1:*", keys);
    ClientSocket client(SchedulerAddress(server.endpoint(), client_keys));
    while (!client.send(FindRunFilesT{})) client.receive(0.01);
    const auto question = server.receive(kLimit);
    ASSERT_TRUE(question);
    const auto send = [&](FromSchedulerMessage message) {
      return server.send(question->peer, std::move(message));
    };
    const auto answer = [&] {
      std::optional<FromSchedulerMessage> message;
      for (const Stopwatch watch; !message && watch.seconds() < kLimit;) message = client.receive(0.1);
      return message ? *std::move(message) : FromSchedulerMessage(AliveT{});
    };
    RunFilesT files;
    const size_t most = kMaxControlBytes - 64, around = encode(FromSchedulerMessage(files)).size() + 24;
    files.experiment.assign(most - around, 'x');
    EXPECT_EQ(send(files), ServerSocket::Sent::kQueued);
    EXPECT_TRUE(std::holds_alternative<RunFilesT>(answer())) << "the largest answer";
    files.experiment.assign(most, 'x');
    EXPECT_EQ(send(files), ServerSocket::Sent::kQueued);
    const FromSchedulerMessage refusal = answer();
    ASSERT_TRUE(std::holds_alternative<RefusedT>(refusal));
    EXPECT_THAT(std::get<RefusedT>(refusal).reason, testing::HasSubstr("its answer would have"));
    PrepareT prepare;
    prepare.experiment.assign(most, 'x');
    EXPECT_EQ(send(prepare), ServerSocket::Sent::kFull) << "an agent would end";
    EXPECT_EQ(send(StopT{}), ServerSocket::Sent::kQueued);
    EXPECT_TRUE(std::holds_alternative<StopT>(answer())) << "on the same connection";
    EXPECT_EQ(client.connections(), 1u);
  }
}

TEST(ServerSocket, TellsWhoDoesNotReadFromWhoIsGone) {
  const std::vector<uint8_t> chunk(1 << 20);
  ServerSocket server("tcp://127.0.0.1:*", {}, Traffic::kChunks);
  auto client = std::make_unique<ClientSocket>(server.endpoint(), Traffic::kChunks);
  while (!client->send(FetchChunkT{{}, "data", 0})) client->receive(0.01);
  const auto question = server.receive(kLimit);
  ASSERT_TRUE(question);
  const auto send = [&] { return server.send(question->peer, ChunkT{{}, "data", 0, chunk}); };
  auto sent = ServerSocket::Sent::kQueued;
  for (const Stopwatch watch; sent == ServerSocket::Sent::kQueued && watch.seconds() < kLimit;) sent = send();
  EXPECT_EQ(sent, ServerSocket::Sent::kFull);
  client.reset();
  for (const Stopwatch watch; sent != ServerSocket::Sent::kGone && watch.seconds() < kLimit;) {
    server.receive(0.01);  // receiving also notices closed connections
    sent = send();
  }
  EXPECT_EQ(sent, ServerSocket::Sent::kGone);
}

}  // namespace
}  // namespace modelet::comm::control
