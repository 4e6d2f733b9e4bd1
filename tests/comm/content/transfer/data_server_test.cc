// Data travels from a client through the scheduler to the cache of an agent, over real sockets. It is sent
// once, fetched once, continued after an interruption and repaired if damaged; and nothing else can be read
// there.
#include "comm/content/transfer/data_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "comm/content/transfer/data_link.h"
#include "comm/content/transfer/transfer.h"
#include "comm/security/keys.h"
#include "node_agent/agent/job/run_data.h"
#include "node_agent/train/data/label_selection.h"
#include "scheduler/access/store_policy.h"
#include "scheduler/client/send_data.h"
#include "scheduler/server/server.h"
#include "shard/data/store/prepared.h"
#include "tests/error_of.h"

namespace modelet {
namespace {

namespace fs = std::filesystem;
namespace msg = comm::control;
using comm::DataServer;
using test::error_of;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kListen[] = "tcp://127.0.0.1:*";
constexpr double kAskAgain = 0.05;
constexpr uint32_t kLabels = 50;

void write_data(const fs::path& path, uint64_t samples, uint64_t seed) {
  constexpr uint32_t kFeatures = 100000, kPerSample = 100;
  Rng rng(seed);
  shard::PreparedWriter writer(path, kFeatures, kLabels, Normalize::kNone);
  for (uint64_t i = 0; i < samples; ++i) {
    std::vector<uint32_t> features;
    for (uint32_t j = 0; j < kPerSample; ++j)
      features.push_back(j * (kFeatures / kPerSample) + rng.below(1000));
    std::vector<float> values(kPerSample);
    for (float& value : values) value = static_cast<float>(rng.below(1000));
    const std::vector<uint32_t> labels = {rng.below(kLabels)};
    writer.add({features, values, labels});
  }
  writer.finish();
}

// Writes a file that is mostly labels: 10 MB of 11.
void write_labels(const fs::path& path) {
  constexpr uint32_t kSamples = 100'000, kHalf = kLabels / 2;
  Rng rng(4);
  std::vector<uint32_t> labels(kHalf);
  shard::PreparedWriter writer(path, 100000, kLabels, Normalize::kNone);
  for (uint32_t i = 0; i < kSamples; ++i) {
    for (uint32_t j = 0; j < kHalf; ++j) labels[j] = 2 * j + rng.below(2);
    writer.add({{}, {}, labels});
  }
  writer.finish();
}

// Checks what a node has of a file: its size, its chunks, and its labels.
void expect_labels(const fs::path& whole, const agent::TrainJob& job) {
  const auto neurons = agent::output_neurons(job);
  const shard::Dataset expected = shard::Dataset::open(whole, true, {.neurons = neurons}),
                       own = shard::Dataset::open(job.train_file, true, {.neurons = neurons, .alone = true});
  ASSERT_EQ(own.rows(), expected.rows());
  for (size_t row = 0; row < own.rows(); ++row) {
    ASSERT_THAT(own.sample(row).labels, testing::ElementsAreArray(expected.sample(row).labels)) << row;
    ASSERT_EQ(own.label_count(row), expected.label_count(row));
  }
}

class DataServerTest : public testing::Test {
 protected:
  DataServerTest() {
    fs::remove_all(folder);
    fs::create_directories(folder);
    write_data(folder / "train.mlt", 7000, 1);  // 6 chunks
    write_data(folder / "test.mlt", 1400, 2);   // 2
    start();
  }
  ~DataServerTest() override {
    server.reset();
    fs::remove_all(folder);
  }

  void start(comm::DataServerOptions options = {}) {
    server.reset();
    options.store = folder / "store";
    server = std::make_unique<DataServer>(options, kListen, std::nullopt);
  }
  msg::SchedulerAddress address() const { return "tcp://127.0.0.1:" + std::to_string(server->port()); }

  // Sends both files. Returns how many bytes that took.
  uint64_t send() {
    std::ostringstream machines, people;
    {
      cli::Reporter reporter(true, machines, people, {});
      train =
          cli::send_data(address(), shard::Dataset::open(folder / "train.mlt"), "train", reporter, kAskAgain);
      test =
          cli::send_data(address(), shard::Dataset::open(folder / "test.mlt"), "test", reporter, kAskAgain);
    }
    std::istringstream lines(machines.str());
    uint64_t bytes = 0;
    for (std::string line; std::getline(lines, line);)
      if (const auto event = nlohmann::json::parse(line); event["bytes"] == event["total_bytes"])
        bytes += event["bytes"].get<uint64_t>();
    return bytes;
  }

  // A job whose paths lead nowhere. It is for one rank of so many nodes that hold equal ranges of output
  // neurons.
  static agent::TrainJob job(int nodes = 1, int rank = 0) {
    agent::TrainJob job;
    job.experiment.data.train = "/nowhere/train.txt";
    job.experiment.data.test = "/nowhere/test.txt";
    job.experiment.modelets.output_modelets = static_cast<uint32_t>(nodes);
    job.shape = {.features = 100000, .labels = kLabels};
    job.rank = rank;
    job.size = nodes;
    uint32_t next = 0;
    for (const ModeletSpec& modelet : partition_model(job.experiment, job.shape))
      job.owner.push_back(modelet.kind == LayerKind::kOutput ? next++ : 0);
    return job;
  }
  agent::DataSource source(const msg::SchedulerAddress& from) const {
    return {.train = comm::parse_content_id(train),
            .test = comm::parse_content_id(test),
            .server = from,
            .cache = {.folder = folder / "cache"},
            .node = "a",
            .ask_again = kAskAgain};
  }
  agent::RunData find(agent::TrainJob& job) { return find(job, address()); }
  agent::RunData find(agent::TrainJob& job, const msg::SchedulerAddress& from) {
    events.clear();
    return agent::RunData(
        source(from), job, [this](const nlohmann::json& event) { events.push_back(event); },
        [this] {
          if (check) check();
        });
  }
  // The number of bytes that the last find() has fetched.
  uint64_t fetched() const {
    uint64_t bytes = 0;
    for (const auto& event : events)
      if (event["bytes"] == event["total_bytes"]) bytes += event["bytes"].get<uint64_t>();
    return bytes;
  }
  uint64_t size() const { return fs::file_size(folder / "train.mlt") + fs::file_size(folder / "test.mlt"); }

  static std::string bytes_of(const fs::path& path) { return read_text_file(path); }
  static void damage(const fs::path& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at).put(static_cast<char>(~byte));
  }
  // The answer to a message of a stranger.
  template <class Answer = msg::RefusedT>
  Answer ask(const msg::SchedulerAddress& scheduler, const msg::ToSchedulerMessage& message) {
    msg::ClientSocket socket(scheduler);
    return ask<Answer>(socket, message);
  }
  template <class Answer>
  Answer ask(msg::ClientSocket& socket, const msg::ToSchedulerMessage& message) {
    while (!socket.send(message)) socket.receive(0.01);
    for (const Stopwatch watch; watch.seconds() < 20;)
      if (auto answer = socket.receive(0.1)) {
        if (!std::holds_alternative<Answer>(*answer)) break;
        return std::get<Answer>(*answer);
      }
    ADD_FAILURE() << "not this answer";
    return {};
  }

  // Whether no process has this entry of the store open.
  bool is_closed(const std::string& data) const {
    const int file = ::open((folder / "store" / (data + ".data")).c_str(), O_RDWR | O_CLOEXEC);
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const bool closed = file >= 0 && ::fcntl(file, F_OFD_SETLK, &whole) == 0;
    ::close(file);
    return closed;
  }

  static msg::OfferT offer_of(const comm::Manifest& manifest) {
    const auto encoded = manifest.encode();
    const auto* first = reinterpret_cast<const uint8_t*>(encoded.data());
    return {{}, {first, first + encoded.size()}};
  }

  const fs::path folder = testing::TempDir() + "modelet_data_server_test";
  std::unique_ptr<DataServer> server;
  std::string train, test;
  std::vector<nlohmann::json> events;
  std::function<void()> check;
};

TEST_F(DataServerTest, IsSentOnceAndFetchedOnce) {
  EXPECT_EQ(send(), size());
  EXPECT_EQ(send(), 0u);
  agent::TrainJob first = job(), second = job();
  {
    const auto data = find(first);
    EXPECT_EQ(fetched(), size());
    EXPECT_EQ(bytes_of(first.train_file), bytes_of(folder / "train.mlt"));
    EXPECT_EQ(bytes_of(first.test_file), bytes_of(folder / "test.mlt"));
    EXPECT_EQ(events.back()["node"], "a");
    EXPECT_EQ(events.back()["data"], "test");
  }
  server.reset();  // everything is in the cache: no server is needed
  events.clear();
  const agent::RunData again(
      source("tcp://127.0.0.1:9"), second, [this](const nlohmann::json& event) { events.push_back(event); },
      [] {});
  EXPECT_THAT(events, IsEmpty());
  EXPECT_EQ(second.train_file, first.train_file);
}

// The user who submits chooses the path. Opening a pipe without a writer would block for ever.
TEST_F(DataServerTest, ThePathOfTheExperimentIsNotOpened) {
  send();
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  agent::TrainJob job = DataServerTest::job();
  job.experiment.data.train = job.experiment.data.test = folder / "pipe";
  const auto data = find(job);
  EXPECT_EQ(fetched(), size());
  EXPECT_EQ(bytes_of(job.train_file), bytes_of(folder / "train.mlt"));
}

TEST_F(DataServerTest, FetchesTheRestAfterAnEnd) {
  send();
  const std::string whole = bytes_of(folder / "train.mlt");
  const fs::path partial = folder / "cache" / (train + ".data");
  check = [&] {  // called between two messages: the end comes when two chunks have arrived
    if (!fs::exists(partial)) return;
    const std::string now = bytes_of(partial);
    size_t same = 0;
    for (size_t at = 0; at < now.size(); at += comm::kChunkBytes)
      same += now.compare(at, comm::kChunkBytes, whole, at, comm::kChunkBytes) == 0;
    if (same >= 2) throw Interrupted("enough");
  };
  agent::TrainJob interrupted = job(), resumed = job();
  EXPECT_EQ(error_of([&] { find(interrupted); }), "enough");
  check = nullptr;
  const auto data = find(resumed);
  EXPECT_EQ(fetched(), size() - 2 * comm::kChunkBytes);
  EXPECT_EQ(bytes_of(resumed.train_file), whole);
}

// The node fetches no more than that, except for the rest of the chunks at both ends of its range, and of the
// last chunk before the labels.
TEST_F(DataServerTest, ANodeFetchesTheLabelsOfItsNeurons) {
  write_labels(folder / "train.mlt");
  send();
  const fs::path whole = folder / "train.mlt";
  const std::string bytes = bytes_of(whole);
  const shard::ByteRange section =
      shard::label_section(std::as_bytes(std::span(bytes)), bytes.size(), "train");
  const uint64_t labels = section.end - section.begin,
                 others = bytes.size() - labels + fs::file_size(folder / "test.mlt");
  constexpr int kNodes = 4;
  for (int rank = 0; rank < kNodes; ++rank) {
    fs::remove_all(folder / "cache");
    agent::TrainJob job = DataServerTest::job(kNodes, rank);
    const auto data = find(job);
    EXPECT_NEAR(static_cast<double>(fetched()), static_cast<double>(others + labels / kNodes),
                3.0 * comm::kChunkBytes);
    EXPECT_GE(fetched(), others + labels / kNodes);
    EXPECT_EQ(events.back()["data"], "test");
    expect_labels(whole, job);
    const std::string own = bytes_of(job.train_file);
    ASSERT_EQ(own.size(), bytes.size());
    uint64_t there = 0;
    for (size_t at = 0; at < bytes.size(); at += comm::kChunkBytes)
      if (own.compare(at, comm::kChunkBytes, bytes, at, comm::kChunkBytes) == 0)
        there += std::min<uint64_t>(comm::kChunkBytes, bytes.size() - at);
      else
        EXPECT_EQ(own.substr(at, comm::kChunkBytes).find_first_not_of('\0'), std::string::npos)
            << "nothing of others' labels";
    EXPECT_EQ(there + fs::file_size(folder / "test.mlt"), fetched());
    EXPECT_THROW(shard::Dataset::open(job.train_file, true), FormatError) << "it is not taken for whole";
  }
}

// The nodes of the next run hold other neurons. What is in the cache is not fetched again; what is missing
// is.
TEST_F(DataServerTest, AnotherPlacementFetchesTheRest) {
  write_labels(folder / "train.mlt");
  send();
  const fs::path whole = folder / "train.mlt";
  agent::TrainJob first = job(4, 1), again = job(4, 1), other = job(4, 2), all = job();
  uint64_t sum = 0;
  const auto data = find(first);  // it trains on
  sum += fetched();
  { const auto same = find(again); }
  EXPECT_EQ(fetched(), 0u);
  const auto beside = find(other);  // an agent with the same cache
  EXPECT_GT(fetched(), 0u);
  EXPECT_LT(fetched(), 4 * comm::kChunkBytes);
  sum += fetched();
  expect_labels(whole, first);
  expect_labels(whole, other);
  const auto rest = find(all);
  sum += fetched();
  EXPECT_EQ(sum, size());
  EXPECT_EQ(bytes_of(all.train_file), bytes_of(whole));
  expect_labels(whole, first);
}

TEST_F(DataServerTest, APartIsFetchedOnAndMended) {
  write_labels(folder / "train.mlt");
  send();
  const std::string whole = bytes_of(folder / "train.mlt");
  const fs::path partial = folder / "cache" / (train + ".data");
  const auto there = [&] {
    const std::string now = fs::exists(partial) ? bytes_of(partial) : "";
    std::vector<size_t> chunks;
    for (size_t at = 0; at < now.size(); at += comm::kChunkBytes)
      if (now.compare(at, comm::kChunkBytes, whole, at, comm::kChunkBytes) == 0) chunks.push_back(at);
    return chunks;
  };
  // The transfer is interrupted after each of the parts: the header, the rest before the labels, some of the
  // labels.
  uint64_t sum = 0;
  for (const size_t chunks : {1u, 2u, 4u}) {
    agent::TrainJob interrupted = job(2, 1);
    check = [&] {
      if (there().size() >= chunks) throw Interrupted("enough");
    };
    EXPECT_EQ(error_of([&] { find(interrupted); }), "enough");
    EXPECT_GE(there().size(), chunks);
  }
  for (const size_t at : there()) sum += std::min<size_t>(comm::kChunkBytes, whole.size() - at);
  check = nullptr;
  agent::TrainJob resumed = job(2, 1);
  { const auto data = find(resumed); }
  const auto chunks = there();
  EXPECT_LE(chunks.size(), 8u) << "of 11";
  for (const size_t at : chunks) sum -= std::min<size_t>(comm::kChunkBytes, whole.size() - at);
  EXPECT_EQ(fetched() - fs::file_size(folder / "test.mlt"), 0 - sum);
  expect_labels(folder / "train.mlt", resumed);

  // One of its chunks is damaged, and something is written where it has no chunk.
  damage(resumed.train_file, static_cast<std::streamoff>(chunks[chunks.size() - 2] + 5));
  size_t hole = 0;
  while (std::ranges::count(chunks, hole) > 0) hole += comm::kChunkBytes;
  damage(resumed.train_file, static_cast<std::streamoff>(hole + 5));
  agent::TrainJob again = job(2, 1);
  const auto data = find(again);
  EXPECT_EQ(fetched(), comm::kChunkBytes);
  expect_labels(folder / "train.mlt", again);
}

TEST_F(DataServerTest, ADamagedChunkInTheCacheIsFetchedAgain) {
  send();
  agent::TrainJob first = job(), second = job();
  { const auto data = find(first); }
  damage(first.train_file, 2 * comm::kChunkBytes + 77);
  const auto data = find(second);
  EXPECT_EQ(fetched(), comm::kChunkBytes);
  EXPECT_EQ(bytes_of(second.train_file), bytes_of(folder / "train.mlt"));
}

TEST_F(DataServerTest, ADamagedChunkInTheStoreIsSentAgain) {
  send();
  damage(folder / "store" / (train + ".data"), comm::kChunkBytes);
  agent::TrainJob first = job(), second = job();
  EXPECT_THAT(error_of([&] { find(first); }), HasSubstr("submit the run again"));
  EXPECT_EQ(send(), comm::kChunkBytes);
  const auto data = find(second);
  EXPECT_EQ(bytes_of(second.train_file), bytes_of(folder / "train.mlt"));
}

TEST_F(DataServerTest, TheStoreOutlivesTheScheduler) {
  send();
  start();
  agent::TrainJob job = DataServerTest::job();
  const auto data = find(job);
  EXPECT_EQ(fetched(), size());
}

// The upload is cut off after two chunks. Chunks that were stored are not wanted again, not even by a new
// scheduler.
TEST_F(DataServerTest, AnUploadGoesOn) {
  const MappedFile file(folder / "train.mlt");
  const auto manifest = comm::Manifest::of(file.bytes());
  const auto wanted = ask<msg::WantedT>(address(), offer_of(manifest));
  EXPECT_THAT(wanted.chunks, SizeIs(manifest.chunks()));
  for (const uint32_t chunk : {4u, 1u}) {
    const auto content = file.bytes().subspan(manifest.chunk_begin(chunk), manifest.chunk_bytes(chunk));
    const auto* begin = reinterpret_cast<const uint8_t*>(content.data());
    const auto stored = ask<msg::ChunkStoredT>(
        address(), msg::PutChunkT{{}, wanted.data, chunk, {begin, begin + content.size()}});
    EXPECT_EQ(stored.chunk, chunk);
  }
  start();
  EXPECT_EQ(send(), size() - 2 * comm::kChunkBytes);
}

// A run waits for nodes for longer than unused data stays open.
TEST_F(DataServerTest, WhatARunNeedsStays) {
  start({.store_bytes = size() + comm::kChunkBytes, .close_seconds = 0});
  send();
  for (const std::string& data : {train, test}) {
    const Stopwatch watch;
    while (!is_closed(data)) {
      ASSERT_LT(watch.seconds(), 60) << "what nobody uses is never closed";
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  server->keep({{train, ""}, {test, ""}, {"", ""}, {"no address", ""}});
  const std::vector<std::byte> other(4 * comm::kChunkBytes);
  EXPECT_THAT(ask(address(), offer_of(comm::Manifest::of(other))).reason, HasSubstr("raise --store-mib"));
  server->keep({});
  agent::TrainJob job = DataServerTest::job();
  const auto data = find(job);
  EXPECT_EQ(fetched(), size());
}

TEST_F(DataServerTest, ServesOnlySoManyAtOnce) {
  start({.most_served = 2, .place_seconds = 1e9});
  send();  // two connections
  const auto later = ask<msg::LaterT>(address(), msg::FetchManifestT{{}, train});
  EXPECT_EQ(later.reason, "it serves 2 connections, as many as it may");
  EXPECT_THAT(ask<msg::LaterT>(address(), offer_of(comm::Manifest::of({}))).reason,
              HasSubstr("2 connections"));
}

TEST_F(DataServerTest, AChunkGivesNoPlace) {
  start({.most_served = 2, .place_seconds = 1e9});
  send();  // two connections
  msg::ClientSocket third(address());
  EXPECT_THAT(ask<msg::RefusedT>(third, msg::PutChunkT{{}, train, 0, {1, 2, 3}}).reason, HasSubstr("hash"));
  EXPECT_THAT(ask<msg::LaterT>(third, msg::FetchManifestT{{}, train}).reason, HasSubstr("2 connections"));
}

TEST_F(DataServerTest, WhoHasToWaitIsServedInTheEnd) {
  start({.most_served = 1, .place_seconds = 0.2});
  send();
  agent::TrainJob job = DataServerTest::job();
  const auto data = find(job);
  EXPECT_EQ(fetched(), size());
  EXPECT_EQ(bytes_of(job.train_file), bytes_of(folder / "train.mlt"));
}

// This scheduler has no time at first, and then answers everything twice.
TEST_F(DataServerTest, WhatComesTwiceCountsOnce) {
  send();
  msg::ServerSocket slow(kListen, std::nullopt, msg::Traffic::kChunks);
  // A queue that is full drops what is sent, and the link would wait for it for ever.
  const auto answer = [&slow](const std::string& peer, const msg::FromSchedulerMessage& message) {
    while (slow.send(peer, message) == msg::ServerSocket::Sent::kFull) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::jthread thread([&](const std::stop_token& stop) {
    std::map<std::string, MappedFile> files;
    files.emplace(train, MappedFile(folder / "train.mlt"));
    files.emplace(test, MappedFile(folder / "test.mlt"));
    std::map<std::pair<std::string, uint32_t>, int> asked;
    while (!stop.stop_requested()) {
      const auto question = slow.receive(0.05);
      if (!question) continue;
      if (const auto* fetch = std::get_if<msg::FetchManifestT>(&question->message))
        answer(question->peer,
               msg::ManifestOfT{
                   {}, fetch->data, offer_of(comm::Manifest::of(files.at(fetch->data).bytes())).manifest});
      const auto* fetch = std::get_if<msg::FetchChunkT>(&question->message);
      if (fetch == nullptr) continue;
      if (++asked[{fetch->data, fetch->chunk}] == 1) {
        answer(question->peer, msg::LaterT{});
        continue;
      }
      const auto manifest = comm::Manifest::of(files.at(fetch->data).bytes());
      const auto content =
          files.at(fetch->data)
              .bytes()
              .subspan(manifest.chunk_begin(fetch->chunk), manifest.chunk_bytes(fetch->chunk));
      const auto* first = reinterpret_cast<const uint8_t*>(content.data());
      for (int times = 0; times < 2; ++times)
        answer(question->peer, msg::ChunkT{{}, fetch->data, fetch->chunk, {first, first + content.size()}});
    }
  });
  agent::TrainJob job = DataServerTest::job();
  const auto data = find(job, slow.endpoint());
  EXPECT_EQ(fetched(), size());
  for (const auto& event : events) EXPECT_LE(event["bytes"], event["total_bytes"]);
  EXPECT_EQ(bytes_of(job.train_file), bytes_of(folder / "train.mlt"));
}

// The link is so slow, or the scheduler takes so long, that many a time-out would have passed. A message is
// sent again only if the scheduler has said that it has no time, or if the connection was lost.
TEST_F(DataServerTest, NothingIsSentAgainWithoutNeed) {
  const MappedFile file(folder / "test.mlt");
  const auto manifest = comm::Manifest::of(file.bytes());
  std::vector<std::string> heard;
  std::string endpoint;
  auto slow = std::make_unique<msg::ServerSocket>(kListen, std::nullopt, msg::Traffic::kChunks);
  std::atomic<bool> sent{false};
  std::thread client([&, address = msg::SchedulerAddress(slow->endpoint())] {
    std::ostringstream machines, people;
    cli::Reporter reporter(true, machines, people, {});
    cli::send_data(address, shard::Dataset::open(folder / "test.mlt"), "test", reporter, kAskAgain);
    sent = true;
  });
  // Notes what comes next, or nothing after a time that is long compared with kAskAgain.
  const auto next = [&](const char* what, double seconds = 60) {
    auto question = slow->receive(seconds);
    heard.push_back(!question                                                   ? "nothing"
                    : std::holds_alternative<msg::OfferT>(question->message)    ? "offer"
                    : std::holds_alternative<msg::PutChunkT>(question->message) ? "chunk"
                                                                                : "else");
    EXPECT_EQ(heard.back(), what) << heard.size();
    return question ? question->peer : "";
  };
  constexpr double kLong = 10 * kAskAgain;
  std::string peer = next("offer");
  next("nothing", kLong);
  slow->send(peer, msg::LaterT{{}, "it serves others", false});
  next("offer");
  slow->send(peer, msg::LaterT{{}, "it looks", true});
  next("nothing", kLong);
  endpoint = slow->endpoint();
  slow.reset();
  slow = std::make_unique<msg::ServerSocket>(endpoint, std::nullopt, msg::Traffic::kChunks);
  peer = next("offer");
  slow->send(peer, msg::WantedT{{}, to_text(manifest.id()), {0, 1}});
  next("chunk");
  next("chunk");
  next("nothing", kLong);
  slow->send(peer, msg::LaterT{{}, "it serves others", false});  // to the first
  next("chunk");
  slow->send(peer, msg::ChunkStoredT{{}, to_text(manifest.id()), 1});
  next("nothing", kLong);
  slow->send(peer, msg::ChunkStoredT{{}, to_text(manifest.id()), 0});
  client.join();
  EXPECT_TRUE(sent);
}

// A run can be ended while the files of the cache are hashed.
TEST_F(DataServerTest, AnEndIsHeardWhileFilesAreHashed) {
  send();
  agent::TrainJob fetched_before = job(), again = job();
  { const auto data = find(fetched_before); }
  check = [] { throw Interrupted("enough"); };
  EXPECT_EQ(error_of([&] { find(again); }), "enough");
}

// The number of labels is a claim of the user who submits.
TEST_F(DataServerTest, DataWithFewerLabelsThanPlannedIsAnError) {
  write_labels(folder / "train.mlt");
  send();
  agent::TrainJob job = DataServerTest::job();
  job.shape.labels = kLabels + 1;
  EXPECT_THAT(error_of([&] { find(job); }), HasSubstr("not the data of that run"));
}

TEST_F(DataServerTest, DataThatNobodySentIsRefused) {
  train = test = std::string(64, '0');
  agent::TrainJob job = DataServerTest::job();
  EXPECT_THAT(error_of([&] { find(job); }), HasSubstr("has no data " + train + ": submit the run again"));
}

// Two nodes that repair the same file from each other must not wait for each other for ever.
TEST_F(DataServerTest, WhoHasNoTimeForLongIsGivenUp) {
  const comm::Manifest manifest = comm::Manifest::of(std::as_bytes(std::span("some text")));
  comm::ContentStore other(folder / "store", 1 << 20, "");
  const auto filled = other.open_unverified(manifest);
  ASSERT_TRUE(filled);
  comm::DataLink link(address(), {.ask_again = kAskAgain, .longest_wait = 3 * kAskAgain});
  EXPECT_THAT(error_of([&] { comm::fetch_manifest(link, manifest.id()); }), HasSubstr("has had no time for"));
}

TEST_F(DataServerTest, WrongMessagesAreRefusedAndDisturbNobody) {
  send();
  const auto refused = [&](const msg::ToSchedulerMessage& message) { return ask(address(), message).reason; };
  EXPECT_THAT(refused(msg::FetchChunkT{{}, train, 6}), HasSubstr("6 chunks, and none with number 6"));
  EXPECT_THAT(refused(msg::FetchChunkT{{}, train, ~0u}), HasSubstr("none with number"));
  EXPECT_FALSE(is_closed(train)) << "it is not open any more";
  for (const char* path : {"", "../train.mlt", "/etc/passwd", "train.mlt"}) {
    EXPECT_THAT(refused(msg::FetchChunkT{{}, path, 0}), HasSubstr("not the address of data"));
    EXPECT_THAT(refused(msg::FetchManifestT{{}, path}), HasSubstr("not the address of data"));
  }
  EXPECT_THAT(refused(msg::PutChunkT{{}, train, 0, {1, 2, 3}}), HasSubstr("hash"));
  EXPECT_THAT(refused(msg::PutChunkT{{}, std::string(64, '0'), 0, {1, 2, 3}}), HasSubstr("no data"));
  EXPECT_THAT(refused(msg::OfferT{{}, {1, 2, 3}}), HasSubstr("not a manifest"));
  EXPECT_THAT(refused(msg::OfferT{{}, {}}), HasSubstr("not a manifest"));
  EXPECT_THAT(refused(msg::ListRunsT{}), HasSubstr("port for data"));
  agent::TrainJob job = DataServerTest::job();
  const auto data = find(job);
  EXPECT_EQ(fetched(), size());
}

TEST_F(DataServerTest, ThePortForRunsSaysWhereDataGoes) {
  scheduler::ServerOptions options{.listen = kListen, .insecure = true};
  options.data = comm::DataServerOptions{.store = folder / "other"};
  scheduler::Server both(options);
  std::thread thread([&both] { both.run(); });
  const uint16_t port = ask<msg::DataPortT>(both.endpoint(), msg::FindDataPortT{}).port;
  const msg::SchedulerAddress data = msg::with_port(both.endpoint(), port);
  EXPECT_THAT(ask(data, msg::FetchManifestT{{}, std::string(64, 'a')}).reason, HasSubstr("no data"));
  EXPECT_THAT(ask(both.endpoint(), msg::FetchManifestT{{}, std::string(64, 'a')}).reason,
              HasSubstr("data has a port of its own"));
  both.request_stop();
  thread.join();
  EXPECT_THROW(comm::data_endpoint("ipc:///tmp/x", 0), UsageError);
}

TEST_F(DataServerTest, WithKeysUsersSendAndAgentsFetch) {
  const comm::KeyPair own = comm::make_key_pair(), user = comm::make_key_pair(),
                      agent = comm::make_key_pair();
  std::ofstream(folder / "allowed") << "agent " << agent.public_key << " office\nuser " << user.public_key
                                    << " alice\n";
  scheduler::StorePolicy policy;
  const DataServer locked(
      {.store = folder / "locked",
       .why_not = [&](const auto& sender, const auto& message) { return policy.why_not(sender, message); }},
      kListen, msg::ServerKeys{own, folder / "allowed"});
  const auto as = [&](const comm::KeyPair& pair) {
    return msg::SchedulerAddress("tcp://127.0.0.1:" + std::to_string(locked.port()),
                                 comm::ClientKeys{pair, own.public_key});
  };
  const std::string some(64, 'a');
  EXPECT_THAT(ask(as(agent), msg::FetchChunkT{{}, some, 0}).reason, HasSubstr("no data"));
  EXPECT_THAT(ask(as(user), msg::FetchChunkT{{}, some, 0}).reason, HasSubstr("the key 'alice' is a user's"));
  EXPECT_THAT(ask(as(user), msg::FetchManifestT{{}, some}).reason, HasSubstr("the key 'alice' is a user's"));
  EXPECT_THAT(ask(as(agent), msg::OfferT{{}, {}}).reason, HasSubstr("the key 'office' is an agent's"));
  EXPECT_THAT(ask(as(user), msg::OfferT{{}, {}}).reason, HasSubstr("not a manifest"));
  // Files of snapshots go the other way: from agents to the user who owns the run.
  EXPECT_THAT(ask(as(agent), msg::OfferT{{}, {}, 7}).reason, HasSubstr("not a manifest"));
  EXPECT_THAT(ask(as(agent), msg::PutChunkT{{}, some, 0, {}}).reason, HasSubstr("was not offered"));
  EXPECT_THAT(ask(as(user), msg::OfferT{{}, {}, 7}).reason, HasSubstr("the key 'alice' is a user's"));
  policy.set_results({{some, "bob"}});
  EXPECT_THAT(ask(as(user), msg::FetchManifestT{{}, some}).reason, HasSubstr("the key 'alice' is a user's"));
  policy.set_results({{some, "alice"}});
  EXPECT_THAT(ask(as(user), msg::FetchManifestT{{}, some}).reason, HasSubstr("no data"));
  EXPECT_THAT(ask(as(user), msg::FetchChunkT{{}, some, 0}).reason, HasSubstr("no data"));
}

}  // namespace
}  // namespace modelet
