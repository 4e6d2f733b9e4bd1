// What the scheduler's port for data answers, message by message, without a socket.
#include "scheduler/data_core.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "comm/content.h"

namespace modelet::scheduler {
namespace {

namespace fs = std::filesystem;
namespace msg = comm::control;
using comm::Manifest;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Bytes = std::vector<std::byte>;

constexpr uint32_t kChunk = comm::kSmallestChunk;

class DataCoreTest : public testing::Test {
 protected:
  ~DataCoreTest() override { fs::remove_all(folder); }

  static Bytes file_of(size_t chunks, int value) { return Bytes(chunks * kChunk, std::byte(value)); }
  static Manifest manifest_of(const Bytes& file) { return Manifest::of(file, kChunk); }
  static std::string address_of(const Bytes& file) { return to_text(manifest_of(file).id()); }

  // As somebody does who shares the folder.
  std::unique_ptr<comm::StoredContent> put(const Bytes& file, size_t chunks) {
    const Manifest manifest = manifest_of(file);
    auto content = store.open(manifest);
    for (size_t chunk = 0; chunk < chunks; ++chunk)
      content->put(chunk, std::span(file).subspan(chunk * kChunk, kChunk));
    return content;
  }

  DataCore::Answers ask(const std::string& peer, msg::ToSchedulerMessage message, double now = 0) {
    return core.handle(now, {.peer = peer, .sender = {}, .message = std::move(message)});
  }
  DataCore::Answers offer(const std::string& peer, const Bytes& file, double now = 0) {
    const Bytes encoded = manifest_of(file).encode();
    const auto* first = reinterpret_cast<const uint8_t*>(encoded.data());
    return ask(peer, msg::OfferT{{}, {first, first + encoded.size()}}, now);
  }
  // The only answer, to `peer`; it must be of this kind.
  template <class T>
  static T only(const DataCore::Answers& answers, const std::string& peer) {
    EXPECT_THAT(answers, SizeIs(1));
    if (answers.size() != 1 || !std::holds_alternative<T>(answers[0].message)) {
      ADD_FAILURE() << "not this answer";
      return {};
    }
    EXPECT_EQ(answers[0].peer, peer);
    return std::get<T>(answers[0].message);
  }

  static fs::path empty(const fs::path& path) {
    fs::remove_all(path);
    return path;
  }
  const fs::path folder = empty(testing::TempDir() + "modelet_data_core_test");
  comm::ContentStore store{folder, 1 << 20, "--limit"};
  DataCore core{{.store = folder}};
};

TEST_F(DataCoreTest, OthersAreServedWhileAFileIsLookedAt) {
  const Bytes large = file_of(3, 1), other = file_of(1, 2);
  put(large, 3);
  put(other, 1);
  EXPECT_THAT(offer("a", large), IsEmpty()) << "which hears when all of it was looked at";
  EXPECT_THAT(core.work(), IsEmpty());
  EXPECT_EQ(only<msg::ManifestOfT>(ask("b", msg::FetchManifestT{{}, address_of(other)}), "b").data,
            address_of(other));
  EXPECT_THAT(only<msg::LaterT>(core.tick(1), "a").reason, HasSubstr(address_of(large)));
  EXPECT_THAT(core.work(), IsEmpty());
  EXPECT_THAT(only<msg::WantedT>(core.work(), "a").chunks, IsEmpty());
}

// An agent may have its cache in the same folder.
TEST_F(DataCoreTest, WhatAnotherProcessFillsIsAskedForAgain) {
  const Bytes file = file_of(2, 1);
  auto other = put(file, 1);
  EXPECT_THAT(only<msg::LaterT>(offer("a", file), "a").reason, HasSubstr("another process"));
  EXPECT_THAT(only<msg::LaterT>(ask("b", msg::FetchManifestT{{}, address_of(file)}), "b").reason,
              HasSubstr(address_of(file)));
  EXPECT_THAT(only<msg::LaterT>(ask("b", msg::FetchChunkT{{}, address_of(file), 0}), "b").reason,
              HasSubstr("another process"));
  other.reset();
  EXPECT_THAT(offer("a", file), IsEmpty());
  EXPECT_THAT(core.work(), IsEmpty());
  EXPECT_THAT(only<msg::WantedT>(core.work(), "a").chunks, ElementsAre(1));
}

// However long it takes: it is not offered again.
TEST_F(DataCoreTest, WhatSomebodyWaitsForStaysOpen) {
  const Bytes file = file_of(2, 1);
  put(file, 2);
  EXPECT_THAT(offer("a", file), IsEmpty());
  EXPECT_THAT(core.work(), IsEmpty());
  const double late = 2 * DataServerOptions{}.close_seconds;
  only<msg::LaterT>(core.tick(late), "a");
  EXPECT_THAT(only<msg::WantedT>(core.work(), "a").chunks, IsEmpty());
  EXPECT_THAT(core.tick(late + 1), IsEmpty());
  EXPECT_THAT(only<msg::ChunkT>(ask("a", msg::FetchChunkT{{}, address_of(file), 0}, late + 1), "a").bytes,
              SizeIs(kChunk));
}

// Else its file would be looked at before that of somebody who waits, and it would be told so for ever.
TEST_F(DataCoreTest, WhoIsGoneWaitsForNothing) {
  Bytes first = file_of(2, 1), second = file_of(2, 2);
  if (address_of(second) < address_of(first)) std::swap(first, second);
  put(first, 2);
  put(second, 2);
  EXPECT_THAT(offer("gone", first), IsEmpty());
  EXPECT_THAT(offer("here", second), IsEmpty());
  core.gone("gone");
  EXPECT_EQ(only<msg::LaterT>(core.tick(1), "here").reason.find(address_of(first)), std::string::npos);
  EXPECT_THAT(core.work(), IsEmpty());
  EXPECT_EQ(only<msg::WantedT>(core.work(), "here").data, address_of(second));
  EXPECT_THAT(core.work(), IsEmpty());
  EXPECT_THAT(core.work(), IsEmpty()) << "nobody hears of the other";
}

TEST_F(DataCoreTest, ThePlaceOfWhoIsGoneIsFree) {
  DataCore narrow({.store = folder, .most_served = 1});
  const auto ask = [&](const char* peer) {
    return narrow.handle(0, {.peer = peer, .sender = {}, .message = msg::FetchManifestT{{}, "none"}});
  };
  only<msg::RefusedT>(ask("a"), "a");
  only<msg::LaterT>(ask("b"), "b");
  narrow.gone("a");
  only<msg::RefusedT>(ask("b"), "b");
}

TEST_F(DataCoreTest, WhoCouldNotBeToldIsToldWithATick) {
  const Bytes file = file_of(1, 1);
  EXPECT_THAT(only<msg::WantedT>(offer("a", file), "a").chunks, SizeIs(1));
  core.not_heard("a", address_of(file));
  EXPECT_THAT(only<msg::WantedT>(core.tick(1), "a").chunks, SizeIs(1));
  EXPECT_THAT(core.tick(2), IsEmpty());
}

}  // namespace
}  // namespace modelet::scheduler
