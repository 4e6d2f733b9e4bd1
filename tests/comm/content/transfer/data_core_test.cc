// What a port for data answers, one message at a time, without a socket.
#include "comm/content/transfer/data_core.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <span>

#include "comm/content/content.h"
#include "comm/content/transfer/bytes.h"
#include "tests/growth.h"

namespace modelet::comm {
namespace {

namespace fs = std::filesystem;
namespace msg = control;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Bytes = std::vector<std::byte>;

constexpr uint32_t kChunk = kSmallestChunk;

class DataCoreTest : public testing::Test {
 protected:
  ~DataCoreTest() override { fs::remove_all(folder); }

  static Bytes file_of(size_t chunks, int value) { return Bytes(chunks * kChunk, std::byte(value)); }
  static Manifest manifest_of(const Bytes& file) { return Manifest::of(file, kChunk); }
  static std::string address_of(const Bytes& file) { return to_text(manifest_of(file).id()); }

  // Writes chunks as another process that shares the folder would.
  std::unique_ptr<StoredContent> put(const Bytes& file, size_t chunks) {
    const Manifest manifest = manifest_of(file);
    auto content = store.open(manifest);
    for (size_t chunk = 0; chunk < chunks; ++chunk)
      content->put(chunk, std::span(file).subspan(chunk * kChunk, kChunk));
    return content;
  }

  DataCore::Replies ask(const std::string& peer, msg::ToSchedulerMessage message, double now = 0) {
    return core.handle(now, {.peer = peer, .sender = {}, .message = std::move(message)});
  }
  DataCore::Replies offer(const std::string& peer, const Bytes& file, double now = 0) {
    const Bytes encoded = manifest_of(file).encode();
    const auto* first = reinterpret_cast<const uint8_t*>(encoded.data());
    return ask(peer, msg::OfferT{{}, {first, first + encoded.size()}}, now);
  }
  // Returns the only answer. It must go to `peer` and be of this type.
  template <class T>
  static T only(const DataCore::Replies& answers, const std::string& peer) {
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
  ContentStore store{folder, 4 << 20, "--limit"};
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

// Runs may name any number of files that nobody has.
TEST_F(DataCoreTest, LookingForFilesThatAreNotThereHoldsUpNobody) {
  constexpr size_t kFiles = 256, kFilesOfTick = 16;
  const auto needed = [](size_t files) {
    std::map<std::string, std::string> addresses;
    for (size_t i = 0; i < files; ++i) {
      const std::string name = std::to_string(i);
      addresses[to_text(content_id(std::as_bytes(std::span(name))))] = "mallory";
    }
    return addresses;
  };
  EXPECT_TRUE(test::grows_linearly(kFiles, needed, [&](const std::map<std::string, std::string>& addresses) {
    core.keep(addresses);
    for (size_t i = 0; i < addresses.size() / kFilesOfTick; ++i) core.tick(1);
  })) << "a tick takes longer if there are more files";
}

TEST_F(DataCoreTest, AllFilesThatRunsNeedAreOpenedInTime) {
  std::map<std::string, std::string> needed;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = std::to_string(i);
    needed[to_text(content_id(std::as_bytes(std::span(name))))] = "mallory";
  }
  std::vector<std::string> own;
  for (int i = 0; i < 5; ++i) {
    const Bytes file = file_of(1, i);
    put(file, 1);
    own.push_back(address_of(file));
    needed[own.back()] = "alice";
  }
  core.keep(std::move(needed));
  for (int i = 0; i < 10; ++i) core.tick(i);
  for (const std::string& address : own) {
    ContentStore other(folder, 1, "--limit");
    EXPECT_FALSE(other.remove(parse_content_id(address))) << "it is kept open";
  }
}

// An agent on the same machine may have its cache in the same folder.
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

// Bytes that leave the machine in other ways count as well.
TEST_F(DataCoreTest, WhoeverIsServedKeepsToTheLinksLimit) {
  const Bytes file = file_of(2, 1);
  put(file, 2);
  const auto link = std::make_shared<RateLimit>(kChunk / 10.0);
  DataCore limited{{.store = folder, .sending = link}};
  const auto fetch = [&](uint32_t chunk, double now) {
    return limited.handle(
        now, {.peer = "a", .sender = {}, .message = msg::FetchChunkT{{}, address_of(file), chunk}});
  };
  only<msg::ChunkT>(fetch(0, 100), "a");
  EXPECT_THAT(only<msg::LaterT>(fetch(1, 101), "a").reason, HasSubstr("link"));
  only<msg::ChunkT>(fetch(1, 110), "a");
  link->take(kChunk, 110);
  EXPECT_THAT(only<msg::LaterT>(fetch(0, 120), "a").reason, HasSubstr("link")) << "20 seconds for two chunks";
  EXPECT_EQ(link->total(), 3 * kChunk);
}

// The file stays open however long it takes, because the peer does not offer it again.
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

// Otherwise the file of a peer that is gone would be checked first, and a peer that waits would be put off
// for ever.
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
  core.undelivered("a", address_of(file));
  EXPECT_THAT(only<msg::WantedT>(core.tick(1), "a").chunks, SizeIs(1));
  EXPECT_THAT(core.tick(2), IsEmpty());
}

// Snapshots have many files, and each open file takes one of few places.
TEST_F(DataCoreTest, AFileOfASnapshotIsClosedOnceItIsWhole) {
  const Bytes data = file_of(1, 1), part = file_of(1, 2);
  const auto offer_and_put = [&](const Bytes& file, uint64_t run) {
    const Bytes encoded = manifest_of(file).encode();
    only<msg::WantedT>(ask("a", msg::OfferT{{}, message_bytes(encoded), run}), "a");
    only<msg::ChunkStoredT>(ask("a", msg::PutChunkT{{}, address_of(file), 0, message_bytes(file)}), "a");
  };
  offer_and_put(data, 0);
  offer_and_put(part, 7);
  core.tick(1);
  EXPECT_FALSE(store.remove(manifest_of(data).id())) << "its run may follow";
  EXPECT_TRUE(store.remove(manifest_of(part).id()));
}

// The scheduler syncs it, and must not say that a file is stored before that.
TEST_F(DataCoreTest, AWholeFileOfASnapshotIsLookedAtBeforeItCountsAsStored) {
  int looked_at = 0;
  bool disk_fails = true;
  DataCore careful({.store = folder, .on_whole_snapshot = [&](StoredContent& file) {
                      EXPECT_TRUE(file.complete());
                      ++looked_at;
                      if (disk_fails) throw Error("the disk fails");
                      file.sync();
                    }});
  const auto tell = [&](msg::ToSchedulerMessage message) {
    return careful.handle(0, {.peer = "a", .sender = {}, .message = std::move(message)});
  };
  const auto offer_as_of = [&](const Bytes& file, uint64_t run) {
    return tell(msg::OfferT{{}, message_bytes(manifest_of(file).encode()), run});
  };
  const auto put_chunk = [&](const Bytes& file, uint32_t chunk) {
    const Bytes bytes(file.begin() + chunk * kChunk, file.begin() + (chunk + 1) * kChunk);
    return tell(msg::PutChunkT{{}, address_of(file), chunk, message_bytes(bytes)});
  };
  const Bytes data = file_of(1, 1), part = file_of(2, 2);
  only<msg::WantedT>(offer_as_of(data, 0), "a");
  only<msg::ChunkStoredT>(put_chunk(data, 0), "a");
  EXPECT_EQ(looked_at, 0) << "no snapshot has it";
  only<msg::WantedT>(offer_as_of(part, 7), "a");
  only<msg::ChunkStoredT>(put_chunk(part, 0), "a");
  EXPECT_EQ(looked_at, 0) << "it is not whole";
  EXPECT_THAT(only<msg::RefusedT>(put_chunk(part, 1), "a").reason, HasSubstr("the disk fails"));
  EXPECT_THAT(only<msg::RefusedT>(offer_as_of(part, 7), "a").reason, HasSubstr("the disk fails"));
  disk_fails = false;
  EXPECT_THAT(only<msg::WantedT>(offer_as_of(part, 7), "a").chunks, IsEmpty());
  EXPECT_EQ(looked_at, 3);
}

TEST_F(DataCoreTest, WhatIsOnlyReadMakesRoomForTheNext) {
  DataCore narrow({.store = folder, .most_open = 2});
  for (const int value : {1, 2, 3}) {
    put(file_of(1, value), 1);
    const std::string address = address_of(file_of(1, value));
    only<msg::ManifestOfT>(
        narrow.handle(value, {.peer = "a", .sender = {}, .message = msg::FetchManifestT{{}, address}}), "a");
  }
}

TEST_F(DataCoreTest, WhatIsClosedIsForOthersToFill) {
  const Bytes file = file_of(2, 1);
  only<msg::WantedT>(offer("a", file), "a");
  EXPECT_FALSE(store.open(manifest_of(file)));
  core.keep({{address_of(file), ""}});
  core.close({address_of(file)});
  core.tick(1);
  EXPECT_TRUE(store.open(manifest_of(file)));
}

// ---- one key among others

class KeysTest : public DataCoreTest {
 protected:
  static DataCore::Replies ask_as(DataCore& core, const std::string& key, const std::string& peer,
                                  msg::ToSchedulerMessage message, double now = 0) {
    return core.handle(now, {.peer = peer, .sender = {Role::kUser, key}, .message = std::move(message)});
  }
  static DataCore::Replies offer_as(DataCore& core, const std::string& key, const Bytes& file) {
    const Bytes encoded = manifest_of(file).encode();
    const auto* first = reinterpret_cast<const uint8_t*>(encoded.data());
    return ask_as(core, key, key, msg::OfferT{{}, {first, first + encoded.size()}});
  }
  static DataCore::Replies put_as(DataCore& core, const std::string& key, const Bytes& file, uint32_t chunk) {
    const auto* first = reinterpret_cast<const uint8_t*>(file.data()) + size_t{chunk} * kChunk;
    return ask_as(core, key, key, msg::PutChunkT{{}, address_of(file), chunk, {first, first + kChunk}});
  }
};

TEST_F(KeysTest, OneKeyCannotHoldAllPlaces) {
  DataCore narrow({.store = folder, .most_served = 4});
  const auto ask = [&](const char* key, const std::string& peer, double now) {
    return ask_as(narrow, key, peer, msg::OfferT{{}, {}}, now);
  };
  for (int i = 0; i < 4; ++i) only<msg::RefusedT>(ask("greedy", std::to_string(i), i), std::to_string(i));
  only<msg::LaterT>(ask("greedy", "4", 4), "4");
  only<msg::RefusedT>(ask("modest", "a", 4), "a");  // is served: there is no such manifest
  only<msg::LaterT>(ask("greedy", "0", 4), "0");    // the one of its four that asked longest ago
  only<msg::RefusedT>(ask("modest", "b", 5), "b");
  only<msg::LaterT>(ask("modest", "c", 5), "c");  // now both keys have the same number
  only<msg::RefusedT>(ask("greedy", "3", 5), "3");
}

TEST_F(KeysTest, OneKeyMayHaveOnlySoMuchInTheStore) {
  const uint64_t manifest_bytes = manifest_of(file_of(2, 1)).encode().size();
  DataCore narrow({.store = folder, .key_bytes = 3 * kChunk + 3 * manifest_bytes});
  const Bytes first = file_of(2, 1), second = file_of(2, 2), third = file_of(2, 3);
  narrow.keep({{address_of(first), "greedy"}, {address_of(second), "greedy"}});  // runs need them
  offer_as(narrow, "greedy", first);
  for (const uint32_t chunk : {0u, 1u})
    only<msg::ChunkStoredT>(put_as(narrow, "greedy", first, chunk), "greedy");
  EXPECT_THAT(only<msg::RefusedT>(offer_as(narrow, "greedy", second), "greedy").reason,
              HasSubstr("the key 'greedy' would have"));
  offer_as(narrow, "other", third);
  for (const uint32_t chunk : {0u, 1u})
    only<msg::ChunkStoredT>(put_as(narrow, "other", third, chunk), "other");
  // Data that no run needs any more makes room for the next data of its own key, but not for data of other
  // keys.
  narrow.keep({{address_of(second), "greedy"}});
  only<msg::WantedT>(offer_as(narrow, "greedy", second), "greedy");
  EXPECT_FALSE(fs::exists(folder / (address_of(first) + ".data")));
  EXPECT_TRUE(fs::exists(folder / (address_of(third) + ".data")));
}

// Refused data is not charged to the key. Otherwise it would count as the data of this key, and be removed to
// make room for the next.
TEST_F(KeysTest, WhatIsRefusedIsNotCharged) {
  const uint64_t manifest_bytes = manifest_of(file_of(1, 0)).encode().size();
  DataCore narrow({.store = folder, .key_bytes = 65 * (manifest_bytes + kChunk)});
  constexpr int kOpen = 64, kRefused = 20;
  for (int i = 0; i < kOpen; ++i) only<msg::WantedT>(offer_as(narrow, "greedy", file_of(1, i)), "greedy");
  for (int i = kOpen; i < kOpen + kRefused; ++i) {
    put(file_of(1, i), 1);  // a file of another owner
    EXPECT_THAT(only<msg::RefusedT>(offer_as(narrow, "greedy", file_of(1, i)), "greedy").reason,
                HasSubstr("64 files open"));
  }
  for (int i = 0; i < kOpen; ++i)
    only<msg::ChunkStoredT>(put_as(narrow, "greedy", file_of(1, i), 0), "greedy");
  for (int i = kOpen; i < kOpen + kRefused; ++i)
    EXPECT_TRUE(fs::exists(folder / (address_of(file_of(1, i)) + ".data"))) << i;
}

// Offers alone, of which no chunk follows, must not keep others out of the store.
TEST_F(KeysTest, WhatAKeyHasOfferedCountsBeforeItArrives) {
  const uint64_t manifest_bytes = manifest_of(file_of(2, 1)).encode().size();
  const uint64_t share = 3 * kChunk + 2 * manifest_bytes;
  DataCore narrow({.store = folder, .store_bytes = 2 * share, .key_bytes = share});
  const Bytes large = file_of(4, 1), first = file_of(2, 2), second = file_of(2, 3), third = file_of(1, 4);
  const auto is_refused = [&](const Bytes& file) {
    return only<msg::RefusedT>(offer_as(narrow, "greedy", file), "greedy").reason;
  };
  EXPECT_THAT(is_refused(large), HasSubstr("the key 'greedy' would have"));
  only<msg::WantedT>(offer_as(narrow, "greedy", first), "greedy");
  narrow.keep({{address_of(first), "greedy"}});
  EXPECT_THAT(is_refused(second), HasSubstr("the key 'greedy' would have"));
  only<msg::WantedT>(offer_as(narrow, "greedy", third), "greedy");
  only<msg::ChunkStoredT>(put_as(narrow, "greedy", first, 0), "greedy");
  only<msg::WantedT>(offer_as(narrow, "greedy", third), "greedy");
  only<msg::WantedT>(offer_as(narrow, "modest", second), "modest");
}

// The key's own files that nobody needs make room for the next, as those do that have arrived.
TEST_F(KeysTest, AFileThatWasNotSentMakesRoomForTheNext) {
  const Bytes first = file_of(2, 1), second = file_of(2, 2);
  const uint64_t manifest_bytes = manifest_of(first).encode().size();
  DataCore narrow({.store = folder, .key_bytes = 3 * kChunk + 2 * manifest_bytes});
  only<msg::WantedT>(offer_as(narrow, "greedy", first), "greedy");
  only<msg::WantedT>(offer_as(narrow, "greedy", second), "greedy");
  EXPECT_FALSE(fs::exists(folder / (address_of(first) + ".data")));
}

// What the key has sent already takes no more room.
TEST_F(KeysTest, AFileThatIsThereMayBeLargerThanAKeysShare) {
  const Bytes file = file_of(4, 1);
  put(file, 4);
  store.note_sender(manifest_of(file).id(), "modest");
  DataCore narrow({.store = folder, .key_bytes = 2 * kChunk});
  EXPECT_THAT(offer_as(narrow, "modest", file), IsEmpty());
  EXPECT_TRUE(narrow.has_work());
}

// Answers, and what is refused, say nothing of what others have in the store.
TEST_F(KeysTest, WhatOthersHaveSentIsNotTold) {
  const Bytes theirs = file_of(3, 1), nobodys = file_of(3, 2);
  only<msg::WantedT>(offer_as(core, "alice", theirs), "alice");
  EXPECT_FALSE(core.has_sent("alice", address_of(theirs)));
  for (const uint32_t chunk : {0u, 1u, 2u})
    only<msg::ChunkStoredT>(put_as(core, "alice", theirs, chunk), "alice");
  EXPECT_TRUE(core.has_sent("alice", address_of(theirs)));
  EXPECT_FALSE(core.has_sent("mallory", address_of(theirs)));
  for (const Bytes& file : {theirs, nobodys}) {
    const std::string address = address_of(file);
    const std::string refused = only<msg::RefusedT>(put_as(core, "eve", file, 0), "eve").reason;
    EXPECT_EQ(refused.substr(refused.find(address) + address.size()),
              " was not offered: submit the run again");
    EXPECT_THAT(only<msg::WantedT>(offer_as(core, "mallory", file), "mallory").chunks, ElementsAre(0, 1, 2));
    only<msg::ChunkStoredT>(put_as(core, "mallory", file, 1), "mallory");
    EXPECT_THAT(only<msg::WantedT>(offer_as(core, "mallory", file), "mallory").chunks, ElementsAre(0, 2));
    EXPECT_FALSE(core.has_sent("mallory", address));
    for (const uint32_t chunk : {0u, 2u})
      only<msg::ChunkStoredT>(put_as(core, "mallory", file, chunk), "mallory");
    EXPECT_TRUE(core.has_sent("mallory", address));
    EXPECT_THAT(only<msg::WantedT>(offer_as(core, "mallory", file), "mallory").chunks, IsEmpty());
  }
}

TEST_F(KeysTest, WhatOthersHaveSentCountsForEachKey) {
  const Bytes theirs = file_of(3, 1), nobodys = file_of(3, 2);
  put(theirs, 3);
  const uint64_t manifest_bytes = manifest_of(theirs).encode().size();
  DataCore narrow({.store = folder, .key_bytes = 2 * kChunk + manifest_bytes});
  for (const Bytes& file : {theirs, nobodys})
    EXPECT_THAT(only<msg::RefusedT>(offer_as(narrow, "mallory", file), "mallory").reason,
                HasSubstr("the key 'mallory' would have"));
  DataCore full({.store = folder, .store_bytes = 4 * kChunk, .key_bytes = 4 * kChunk});
  full.keep({{address_of(theirs), "alice"}});
  for (const Bytes& file : {theirs, nobodys})
    EXPECT_THAT(only<msg::RefusedT>(offer_as(full, "mallory", file), "mallory").reason,
                HasSubstr("does not fit"));
}

// A run may name only what its key has sent. So this must outlive the process, but not the file.
TEST_F(KeysTest, WhoHasSentAFileIsKnownAsLongAsItIsThere) {
  const Bytes file = file_of(1, 1);
  only<msg::WantedT>(offer_as(core, "alice", file), "alice");
  only<msg::ChunkStoredT>(put_as(core, "alice", file, 0), "alice");
  EXPECT_TRUE(DataCore({.store = folder}).has_sent("alice", address_of(file)));
  core.close({address_of(file)});
  ASSERT_TRUE(store.remove(manifest_of(file).id()));
  put(file, 1);
  EXPECT_FALSE(core.has_sent("alice", address_of(file)));
  EXPECT_THAT(only<msg::WantedT>(offer_as(core, "alice", file), "alice").chunks, ElementsAre(0));
}

TEST_F(KeysTest, WhatIsEarlyIsAskedForAgain) {
  const Bytes file = file_of(1, 1);
  put(file, 1);
  DataCore strict({.store = folder, .is_early = [](const Identity& sender, const msg::ToSchedulerMessage&) {
                     return sender.name != "alice";
                   }});
  for (const std::string& address : {address_of(file), address_of(file_of(1, 2))})
    only<msg::LaterT>(ask_as(strict, "eve", "eve", msg::FetchChunkT{{}, address, 0}), "eve");
  only<msg::ChunkT>(ask_as(strict, "alice", "alice", msg::FetchChunkT{{}, address_of(file), 0}), "alice");
}

TEST_F(KeysTest, TheRunsOfOneKeyCannotHoldAllThatMayBeOpen) {
  std::map<std::string, std::string> kept;
  for (int i = 0; i < 256; ++i) {
    const Bytes file = file_of(1, i);
    put(file, 1);
    kept.emplace(address_of(file), "greedy");
  }
  core.keep(kept);
  core.tick(1);
  only<msg::WantedT>(offer_as(core, "modest", file_of(2, 1)), "modest");
  for (int i = 0; i < 16; ++i)  // a quarter is left for what is sent
    only<msg::WantedT>(offer_as(core, "greedy", file_of(2, 2 + i)), "greedy");
  EXPECT_THAT(only<msg::RefusedT>(offer_as(core, "greedy", file_of(2, 18)), "greedy").reason,
              HasSubstr("the key 'greedy' has 64 files open"));
}

// Checkpoints of active runs: each file stays in the store, but not open.
TEST_F(KeysTest, SnapshotsThatRunsNeedLeaveRoomForMore) {
  constexpr int kFiles = 100;  // more than may be open
  std::map<std::string, std::string> kept;
  const auto offer_snapshot = [&](const Bytes& file) {
    return ask_as(core, "farm", "farm", msg::OfferT{{}, message_bytes(manifest_of(file).encode()), 7}, 1);
  };
  for (int i = 0; i < kFiles; ++i) {
    const Bytes file = file_of(1, i);
    only<msg::WantedT>(offer_snapshot(file), "farm");
    only<msg::ChunkStoredT>(put_as(core, "farm", file, 0), "farm");
    kept.emplace(address_of(file), "user");
    core.keep(kept);
    core.tick(1);
  }
  for (int i = 0; i < kFiles; ++i) EXPECT_TRUE(store.manifest(manifest_of(file_of(1, i)).id())) << i;
}

}  // namespace
}  // namespace modelet::comm
