// Files that are addressed by their content: manifests that were tampered with, wrong chunks, killed writers,
// folders with a limit.
#include "comm/content/content.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "comm/content/store.h"
#include "tests/error_of.h"
#include "tests/processes.h"

namespace modelet::comm {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint32_t kChunk = kSmallestChunk;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(size_t size, uint64_t seed) {
  Rng rng(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next());
  return bytes;
}

Manifest manifest_of(const Bytes& file) { return Manifest::of(file, kChunk); }

std::span<const std::byte> chunk_of(const Bytes& file, const Manifest& manifest, size_t chunk) {
  return std::span(file).subspan(manifest.chunk_begin(chunk), manifest.chunk_bytes(chunk));
}

void fill(StoredContent& content, const Bytes& file) {
  for (const uint32_t chunk : content.missing())
    content.put(chunk, chunk_of(file, content.manifest(), chunk));
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The test vector in the appendix of RFC 7693 is for BLAKE2b-512. This one is what `b2sum -l 256` prints for
// "abc".
TEST(ContentIdTest, IsBlake2b256) {
  const std::string abc = "abc";
  const std::string text = to_text(content_id(std::as_bytes(std::span(abc))));
  EXPECT_EQ(text, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  EXPECT_EQ(to_text(parse_content_id(text)), text);
}

TEST(ContentIdTest, NothingElseIsAnAddress) {
  const std::string good(64, 'a');
  EXPECT_NO_THROW(parse_content_id(good));
  for (const std::string& bad : {std::string(), good.substr(1), good + "a", "../" + good.substr(3),
                                 "A" + good.substr(1), std::string(64, '\0'), good.substr(1) + "/"})
    EXPECT_THROW(parse_content_id(bad), FormatError) << bad;
}

TEST(ManifestTest, RoundTripAtEverySizeAroundAChunk) {
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{kChunk - 1}, size_t{kChunk}, size_t{kChunk + 1}, size_t{3 * kChunk}}) {
    const Bytes file = random_bytes(size, size);
    const Manifest manifest = manifest_of(file), back = Manifest::parse(manifest.encode());
    EXPECT_EQ(back.id(), manifest.id());
    EXPECT_EQ(back.bytes(), size);
    EXPECT_EQ(back.chunks(), (size + kChunk - 1) / kChunk);
    size_t sum = 0;
    for (size_t chunk = 0; chunk < back.chunks(); ++chunk) {
      sum += back.chunk_bytes(chunk);
      EXPECT_TRUE(back.is_chunk(chunk, chunk_of(file, back, chunk)));
      EXPECT_FALSE(back.is_chunk(chunk, chunk_of(file, back, chunk).subspan(1)));
    }
    EXPECT_EQ(sum, size);
    EXPECT_FALSE(back.is_chunk(back.chunks(), {}));
  }
}

// A manifest with a changed bit is refused, or is the manifest of another file. It is never taken for this
// one.
TEST(ManifestTest, AChangedOneIsAnother) {
  const Bytes file = random_bytes(5 * kChunk + 7, 1);
  const Manifest manifest = manifest_of(file);
  const Bytes good = manifest.encode();
  size_t refused = 0;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes changed = good;
    changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    try {
      EXPECT_NE(Manifest::parse(changed).id(), manifest.id());
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GE(refused, 8u * 16) << "magic, version and sizes that do not fit the number of chunks";
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_THROW(Manifest::parse(std::span(good).first(size)), FormatError);
}

TEST(ManifestTest, OneThatWouldNotFitIntoAMessageIsRefused) {
  Bytes bytes = manifest_of(random_bytes(kChunk, 1)).encode();
  const uint64_t huge = (uint64_t{kMostChunks} + 1) * kChunk;
  std::memcpy(bytes.data() + 8, &huge, sizeof huge);
  EXPECT_THAT(error_of([&] { Manifest::parse(bytes); }), HasSubstr("more than the limit"));
}

class ContentStoreTest : public testing::Test {
 protected:
  ~ContentStoreTest() override { fs::remove_all(folder); }

  static Bytes contents(const StoredContent& content) {
    const MappedFile file(content.path());
    return {file.bytes().begin(), file.bytes().end()};
  }
  size_t entries() const {
    return static_cast<size_t>(
        std::count_if(fs::directory_iterator(folder), fs::directory_iterator(),
                      [](const auto& entry) { return entry.path().extension() == ".data"; }));
  }

  static fs::path empty(const fs::path& path) {
    fs::remove_all(path);
    return path;
  }
  const fs::path folder = empty(testing::TempDir() + "modelet_content_store_test");
  const Bytes file = random_bytes(6 * kChunk + 100, 2);
  const Manifest manifest = manifest_of(file);
  ContentStore store{folder, 1 << 20, "--limit"};
};

TEST_F(ContentStoreTest, IsFilledInAnyOrder) {
  EXPECT_FALSE(store.manifest(manifest.id()));
  const auto content = store.open(manifest);
  EXPECT_EQ(content->missing().size(), 7u);
  for (const uint32_t chunk : {6u, 0u, 3u, 1u, 5u, 4u, 2u}) {
    EXPECT_FALSE(content->complete());
    content->put(chunk, chunk_of(file, manifest, chunk));
    EXPECT_TRUE(content->has(chunk));
  }
  EXPECT_TRUE(content->complete());
  EXPECT_EQ(contents(*content), file);
  EXPECT_EQ(store.manifest(manifest.id())->encode(), manifest.encode());
}

TEST_F(ContentStoreTest, RefusesWhatIsNotTheChunk) {
  const auto content = store.open(manifest);
  Bytes wrong(chunk_of(file, manifest, 2).begin(), chunk_of(file, manifest, 2).end());
  EXPECT_THROW(content->put(1, wrong), FormatError) << "another chunk";
  wrong[17] ^= std::byte{1};
  EXPECT_THROW(content->put(2, wrong), FormatError);
  EXPECT_THROW(content->put(2, std::span(wrong).first(10)), FormatError);
  EXPECT_THROW(content->put(7, wrong), FormatError);
  EXPECT_THROW(content->put(~size_t{0}, wrong), FormatError);
  EXPECT_EQ(content->missing().size(), 7u);
}

// The writer is killed again and again until the file is complete. It may have written half of a chunk each
// time.
TEST_F(ContentStoreTest, GoesOnWhereAKilledWriterWas) {
  const auto fill_some = [&](size_t count) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto content = store.open(manifest).release();
      const auto missing = content->missing();
      for (size_t i = 0; i < count; ++i) content->put(missing[i], chunk_of(file, manifest, missing[i]));
      std::fstream half(content->path(), std::ios::in | std::ios::out | std::ios::binary);
      half.seekp(static_cast<std::streamoff>(manifest.chunk_begin(missing[count])));
      half.write(text_of(file).data() + manifest.chunk_begin(missing[count]), kChunk / 2).flush();
      ::raise(SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
  };
  fill_some(2);
  EXPECT_THAT(store.open(manifest)->missing(), ElementsAre(2, 3, 4, 5, 6));
  fill_some(3);
  const auto content = store.open(manifest);
  EXPECT_THAT(content->missing(), ElementsAre(5, 6));
  fill(*content, file);
  EXPECT_EQ(contents(*content), file);
}

TEST_F(ContentStoreTest, NoticesDamage) {
  fill(*store.open(manifest), file);
  fs::path path;
  {
    const auto content = store.open(manifest);
    EXPECT_TRUE(content->complete());
    path = content->path();
  }
  {
    std::fstream damage(path, std::ios::in | std::ios::out | std::ios::binary);
    damage.seekp(static_cast<std::streamoff>(manifest.chunk_begin(4) + 5)).put('!').seekp(0).put('!');
  }
  {
    const auto content = store.open(manifest);
    EXPECT_THAT(content->missing(), ElementsAre(0, 4));
    fill(*content, file);
    EXPECT_EQ(contents(*content), file);
  }
  fs::resize_file(path, 3 * kChunk + 1);
  {
    const auto content = store.open(manifest);
    EXPECT_THAT(content->missing(), ElementsAre(3, 4, 5, 6));
    fill(*content, file);
  }
  const auto content = store.open(manifest);
  EXPECT_EQ(contents(*content), file);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).put('!');
  EXPECT_FALSE(content->read(0)) << "while it is open";
  EXPECT_FALSE(content->complete());
  EXPECT_EQ(content->read(1), Bytes(chunk_of(file, manifest, 1).begin(), chunk_of(file, manifest, 1).end()));
}

// A server looks at one chunk at a time, so that it can answer others in between.
TEST_F(ContentStoreTest, IsLookedAtChunkByChunk) {
  fill(*store.open(manifest), file);
  const fs::path path = store.open(manifest)->path();
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(manifest.chunk_begin(3)))
      .put('!')
      .put('?');
  const auto content = store.open_unverified(manifest);
  EXPECT_FALSE(content->verified() || content->complete());
  EXPECT_THAT(content->missing(), IsEmpty()) << "nothing was looked at";
  EXPECT_TRUE(content->read(5)) << "which looks at this chunk alone";
  EXPECT_TRUE(content->has(5) && !content->has(4));
  EXPECT_FALSE(content->read(3));
  EXPECT_THAT(content->missing(), ElementsAre(3));
  for (int steps = 0; steps < 5; ++steps) {
    EXPECT_FALSE(content->verified());
    content->verify_next();
  }
  EXPECT_TRUE(content->verified() && !content->complete() && content->writable());
  fill(*content, file);
  EXPECT_TRUE(content->complete());
  EXPECT_NE(store.open(manifest), nullptr) << "others may use it";
  EXPECT_EQ(contents(*content), file);
}

TEST_F(ContentStoreTest, AChunkThatComesTwiceCountsOnce) {
  const auto content = store.open(manifest);
  EXPECT_TRUE(content->put(2, chunk_of(file, manifest, 2)));
  EXPECT_FALSE(content->put(2, chunk_of(file, manifest, 2)));
  EXPECT_EQ(content->missing().size(), 6u);
}

// A chunk that is already there, but has not been checked, is checked before anything is written.
TEST_F(ContentStoreTest, AChunkThatComesBeforeItWasLookedAt) {
  const auto user = store.open(manifest);
  fill(*user, file);
  const auto other = store.open_unverified(manifest);
  ASSERT_TRUE(other && other->writable());
  EXPECT_FALSE(other->put(2, chunk_of(file, manifest, 2))) << "it is there";
  EXPECT_TRUE(other->has(2) && !other->has(1));
  std::fstream(user->path(), std::ios::in | std::ios::out | std::ios::binary).put('!');
  EXPECT_FALSE(user->read(0));
  EXPECT_THAT(error_of([&] { user->put(0, chunk_of(file, manifest, 0)); }), HasSubstr("is damaged"))
      << "it has given up the right to fill it";
  EXPECT_TRUE(other->put(0, chunk_of(file, manifest, 0)));
  EXPECT_EQ(contents(*user), file);
}

// A program that must end does not wait until gigabytes are checked.
TEST_F(ContentStoreTest, AnEndIsHeardBetweenTwoChunks) {
  fill(*store.open(manifest), file);
  int calls = 0;
  const auto check = [&calls] {
    if (++calls == 3) throw Interrupted("enough");
  };
  EXPECT_EQ(error_of([&] { store.open(manifest, check); }), "enough");
  calls = 0;
  const ReadFile data(store.open(manifest)->path());
  EXPECT_EQ(Manifest::of(data, kChunk).id(), manifest.id());
  EXPECT_EQ(error_of([&] { Manifest::of(data, kChunk, check); }), "enough");
  EXPECT_TRUE(store.open(manifest)->complete()) << "nobody has it any more";
}

// One user has filled the folder, and another may only read it. The other works from inside the folder,
// because he may not be able to enter the folders above it.
TEST_F(ContentStoreTest, WhoMayOnlyReadUsesWhatIsWhole) {
  const Bytes half = random_bytes(3 * kChunk, 5), none = random_bytes(kChunk, 6);
  fill(*store.open(manifest), file);
  store.open(manifest_of(half))->put(0, chunk_of(half, manifest_of(half), 0));
  for (const auto& entry : fs::directory_iterator(folder)) ::chmod(entry.path().c_str(), 0444);
  ::chmod(folder.c_str(), 0555);
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::chdir(folder.c_str()) != 0 || (::geteuid() == 0 && ::setuid(kNobody) != 0)) ::_exit(9);
    int wrong = 0;
    const std::string error = error_of([&] {
      ContentStore here(".", 1 << 20, "--limit");
      const auto one = here.open(manifest), two = here.open(manifest);
      wrong |= one && two && one->complete() && contents(*two) == file ? 0 : 1;
    });
    wrong |= error == "no error" ? 0 : 2;
    const auto refused = [&](const Bytes& other, const char* why) {
      return error_of([&] { ContentStore(".", 1 << 20, "--limit").open(manifest_of(other)); }).find(why) !=
             std::string::npos;
    };
    wrong |= refused(half, "is incomplete") ? 0 : 4;
    wrong |= refused(none, "denied") ? 0 : 8;
    ::_exit(wrong);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::chmod(folder.c_str(), 0755);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A file has fewer blocks than bytes if the file system compresses, or, as here, leaves out zeros.
TEST_F(ContentStoreTest, WhatIsWholeStaysAlsoWhenTheFolderIsFull) {
  const Bytes zeros(3 * kChunk);
  const Manifest sparse = manifest_of(zeros);
  const fs::path path = folder / (to_text(sparse.id()) + ".data");
  std::ofstream(path).close();
  fs::resize_file(path, sparse.bytes());
  ContentStore full(folder, kChunk, "--limit");
  const auto content = full.open(sparse);
  ASSERT_TRUE(content);
  EXPECT_TRUE(content->complete());
  EXPECT_TRUE(fs::exists(path));
}

// The disk space of all entries, counted as the store does.
uint64_t bytes_taken(const fs::path& folder) {
  uint64_t taken = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    struct stat info {};
    if (entry.path().extension() == ".data" && ::stat(entry.path().c_str(), &info) == 0)
      taken += static_cast<uint64_t>(std::min(512 * info.st_blocks, info.st_size));
  }
  return taken;
}

// A manifest is cheap to send, whatever size it claims for its file. So a manifest alone must not take room.
TEST_F(ContentStoreTest, RoomIsTakenByWhatCameNotByWhatWasPromised) {
  ContentStore small(folder, 8 * kChunk, "--limit");
  const Bytes used = random_bytes(2 * kChunk, 8);
  fill(*small.open(manifest_of(used)), used);
  const uint64_t before = bytes_taken(folder);
  for (uint64_t seed = 20; seed < 24; ++seed)
    EXPECT_TRUE(small.open(manifest_of(random_bytes(6 * kChunk, seed))));
  EXPECT_EQ(bytes_taken(folder), before);
  EXPECT_TRUE(small.open(manifest_of(used))->complete()) << "promises drive nothing out";
}

// Whoever sends a file again needs no room for it.
TEST_F(ContentStoreTest, WhatIsThereTakesNoMoreRoom) {
  ContentStore small(folder, 4 * kChunk, "--limit");
  const Bytes own = random_bytes(3 * kChunk, 8), other = random_bytes(kChunk, 9);
  for (const Bytes& each : {own, other}) fill(*small.open(manifest_of(each)), each);
  const auto content = small.open_unverified(manifest_of(own));
  ASSERT_NE(content, nullptr);
  for (const size_t chunk : {0, 1, 2})
    EXPECT_TRUE(content->put(chunk, chunk_of(own, content->manifest(), chunk), true));
  EXPECT_TRUE(content->complete());
  EXPECT_TRUE(small.manifest(manifest_of(other).id())) << "it was removed to make room";
}

// The log of a run is for its user, who must not learn what others have in the same folder.
TEST_F(ContentStoreTest, WhatIsRemovedForARunIsNotInItsLog) {
  start_logging("content_test");
  LogTail log_of_run(1 << 20);
  ContentStore small(folder, 4 * kChunk, "--limit");
  const Bytes theirs = random_bytes(3 * kChunk, 8), own = random_bytes(3 * kChunk, 9);
  fill(*small.open(manifest_of(theirs)), theirs);
  fill(*small.open(manifest_of(own)), own);
  ASSERT_FALSE(small.manifest(manifest_of(theirs).id())) << "it was removed to make room";
  log_info("something of the run");
  const std::vector<std::string> lines = log_of_run.take(SIZE_MAX);
  EXPECT_EQ(lines.size(), 1u) << testing::PrintToString(lines);
}

TEST_F(ContentStoreTest, RemovesWhatNobodyHasOpen) {
  auto content = store.open(manifest);
  fill(*content, file);
  EXPECT_FALSE(store.remove(manifest.id())) << "it is open";
  content.reset();
  EXPECT_TRUE(store.remove(manifest.id()));
  EXPECT_EQ(entries(), 0u);
  EXPECT_FALSE(store.manifest(manifest.id()));
}

TEST_F(ContentStoreTest, ADamagedManifestIsNone) {
  fill(*store.open(manifest), file);
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".manifest")
      std::fstream(entry.path(), std::ios::in | std::ios::out).seekp(40).put('!');
  EXPECT_FALSE(store.manifest(manifest.id()));
  EXPECT_TRUE(store.open(manifest)->complete()) << "who brings the manifest finds the file";
  EXPECT_TRUE(store.manifest(manifest.id()));
}

TEST_F(ContentStoreTest, OneFillsItAllUseIt) {
  auto writer = store.open(manifest);
  EXPECT_EQ(store.open(manifest), nullptr);
  fill(*writer, file);
  const auto reader = store.open(manifest);
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->complete());
  writer.reset();
  EXPECT_TRUE(store.open(manifest)->complete());
}

// Several agents of one machine want the same data at once. One of them fetches it. If that agent is killed,
// another one continues where it stopped.
TEST_F(ContentStoreTest, OfManyProcessesOneFillsIt) {
  constexpr int kProcesses = 4, kKilled = 2;
  struct Board {
    std::atomic<int> writer = -1, chunks_put = 0;
  };
  for (int round = 0; round < 10; ++round) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    const test::Shared<Board> board;
    const auto ends = test::run_processes(kProcesses, [&](int process) {
      std::unique_ptr<StoredContent> content;
      while (!(content = store.open(manifest))) ::sched_yield();
      if (content->writable()) board->writer = process;
      for (const uint32_t chunk : content->missing()) {
        ::sched_yield();
        test::require(board->writer == process, "somebody else fills it, too");
        board->chunks_put += content->put(chunk, chunk_of(file, manifest, chunk));
        if (process < kKilled && board->chunks_put > process) ::raise(SIGKILL);
      }
      test::require(content->complete() && contents(*content) == file, "the file is not right");
    });
    for (int process = 0; process < kProcesses; ++process)
      EXPECT_TRUE(ends[process] == 0 || (process < kKilled && WIFSIGNALED(ends[process]))) << process;
    EXPECT_EQ(board->chunks_put, static_cast<int>(manifest.chunks())) << "no chunk is fetched twice";
  }
}

// There is room for one of two files, and each process wants sometimes one and sometimes the other. So an
// unused file is removed while another process opens it. A process that got it open must keep it; then there
// is no room for the other file.
TEST_F(ContentStoreTest, WhatIsOpenedWhileItIsRemovedIsMadeAnewOrStays) {
  constexpr int kProcesses = 4, kRounds = 40;
  const Bytes files[] = {file, random_bytes(file.size(), 3)};
  const Manifest manifests[] = {manifest, manifest_of(files[1])};
  const test::Shared<std::atomic<int>> made;
  const auto ends = test::run_processes(kProcesses, [&](int process) {
    ContentStore small(folder, file.size() * 3 / 2, "--limit");
    Rng rng(static_cast<uint64_t>(process));
    for (int done = 0; done < kRounds;) {
      const size_t which = rng.below(2);
      std::unique_ptr<StoredContent> content;
      try {
        content = small.open(manifests[which]);
      } catch (const Error& error) {  // the other file is in use
        test::require(std::string(error.what()).find("raise --limit") != std::string::npos, error.what());
      }
      if (!content) {
        ::sched_yield();
        continue;
      }
      *made += content->writable();
      try {
        for (const uint32_t chunk : content->missing()) {
          content->put(chunk, chunk_of(files[which], manifests[which], chunk));
          ::sched_yield();
        }
      } catch (const Error& error) {  // another process has opened the other file, which was complete
        test::require(std::string(error.what()).find("raise --limit") != std::string::npos, error.what());
        continue;
      }
      test::require(content->complete() && contents(*content) == files[which], "the file is not right");
      test::require(small.manifest(manifests[which].id()).has_value(), "its manifest is gone");
      // At most two processes write at once. Both may have found room for the same last chunk.
      test::require(bytes_taken(folder) <= file.size() * 3 / 2 + kChunk,
                    "the folder has grown beyond its limit");
      ++done;
    }
  });
  EXPECT_THAT(ends, testing::Each(0));
  EXPECT_GT(*made, 2) << "else nothing was removed";
}

// Makes the time of last use visible, because the clock of files ticks slowly.
void age(const fs::path& path, int seconds) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
}

TEST_F(ContentStoreTest, RemovesWhatWasUsedLongestAgoAndNeverWhatIsOpen) {
  ContentStore small(folder, 3 * kChunk, "--limit");
  std::vector<Manifest> manifests;
  std::vector<Bytes> files;
  std::vector<fs::path> paths;
  for (uint64_t i = 0; i < 4; ++i) {
    files.push_back(random_bytes(kChunk, 100 + i));
    manifests.push_back(manifest_of(files.back()));
    paths.push_back(folder / (to_text(manifests.back().id()) + ".data"));
  }
  for (size_t i = 0; i < 3; ++i) fill(*small.open(manifests[i]), files[i]);
  age(paths[0], 10);
  age(paths[1], 30);  // the oldest
  age(paths[2], 20);
  fill(*small.open(manifests[3]), files[3]);
  EXPECT_FALSE(fs::exists(paths[1]));
  EXPECT_FALSE(small.manifest(manifests[1].id()));
  EXPECT_TRUE(fs::exists(paths[0]) && fs::exists(paths[2]) && fs::exists(paths[3]));

  const auto used = small.open(manifests[2]);
  age(paths[0], 10);
  age(paths[2], 20);  // the oldest, but it is in use
  fill(*small.open(manifests[1]), files[1]);
  EXPECT_FALSE(fs::exists(paths[0]));
  EXPECT_TRUE(fs::exists(paths[2]));

  const auto also = small.open(manifests[1]), another = small.open(manifests[3]);
  EXPECT_THAT(error_of([&] { small.open(manifests[0]); }), HasSubstr("raise --limit"));
  EXPECT_EQ(entries(), 3u) << "what was refused leaves nothing";
}

TEST_F(ContentStoreTest, WhatIsWantedIsRemovedLast) {
  ContentStore small(folder, 2 * kChunk, "--limit");
  std::vector<Bytes> files;
  std::vector<std::string> addresses;
  for (uint64_t i = 0; i < 4; ++i) {
    files.push_back(random_bytes(kChunk, 200 + i));
    addresses.push_back(to_text(manifest_of(files.back()).id()));
  }
  const auto add = [&](size_t i) { fill(*small.open(manifest_of(files[i])), files[i]); };
  const auto is_there = [&](size_t i) { return fs::exists(folder / (addresses[i] + ".data")); };
  add(0);
  add(1);
  age(folder / (addresses[0] + ".data"), 100);
  small.protect({}, {addresses[0], addresses[3]});
  EXPECT_THAT(small.in_order_of_removal(), testing::ElementsAre(addresses[1], addresses[0]));
  add(2);
  EXPECT_TRUE(is_there(0)) << "although it was used longer ago";
  EXPECT_FALSE(is_there(1));
  small.protect({}, {addresses[0], addresses[2], addresses[3]});
  add(3);
  EXPECT_FALSE(is_there(0)) << "nothing else is left";
  EXPECT_TRUE(is_there(2) && is_there(3));
  small.protect({addresses[2], addresses[3]}, {});
  EXPECT_THAT(error_of([&] { add(0); }), HasSubstr("does not fit"));
  EXPECT_TRUE(is_there(2) && is_there(3)) << "although nobody has them open";
}

// The user may keep other things in the folder.
TEST_F(ContentStoreTest, WhatIsNotItsOwnIsNeverRemoved) {
  ContentStore small(folder, 7 * kChunk, "--limit");
  const fs::path foreign = folder / "corpus.data";
  std::ofstream(foreign) << std::string(5 * kChunk, 'x');
  fill(*small.open(manifest), file);
  const Bytes other = random_bytes(6 * kChunk, 9);
  fill(*small.open(manifest_of(other)), other);  // drives the first one out
  EXPECT_EQ(fs::file_size(foreign), 5 * kChunk);
  EXPECT_FALSE(small.manifest(manifest.id()).has_value());
}

// A block of the disk goes bad while a process trains on the file. The next process to open the file repairs
// it, without waiting.
TEST_F(ContentStoreTest, WhatIsDamagedWhileOthersUseItIsMended) {
  const auto used = store.open(manifest);
  fill(*used, file);
  std::fstream(used->path(), std::ios::in | std::ios::out | std::ios::binary) << "damage";
  const auto again = store.open(manifest);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(again->missing(), ElementsAre(0));
  fill(*again, file);
  EXPECT_EQ(contents(*again), file);
  EXPECT_EQ(contents(*used), file);
}

// Two agents of one machine want parts of a file one after the other, and both train meanwhile.
TEST_F(ContentStoreTest, AClientThatHasItsPartLetsOthersFillTheRest) {
  auto first = store.open(manifest);
  for (const uint32_t chunk : {0u, 1u, 4u}) first->put(chunk, chunk_of(file, manifest, chunk));
  EXPECT_EQ(store.open(manifest), nullptr);
  first->release();
  EXPECT_FALSE(first->complete() || first->writable());
  EXPECT_TRUE(first->has(4));
  EXPECT_THROW(first->put(2, chunk_of(file, manifest, 2)), Error);

  const auto second = store.open(manifest);
  ASSERT_NE(second, nullptr);
  EXPECT_THAT(second->missing(), ElementsAre(2, 3, 5, 6));
  second->put(3, chunk_of(file, manifest, 3));
  EXPECT_EQ(store.open(manifest), nullptr);
  second->release();
  ContentStore small(folder, file.size() * 3 / 2, "--limit");
  const Bytes other = random_bytes(file.size(), 9);
  EXPECT_THAT(error_of([&] { small.open(manifest_of(other)); }), HasSubstr("raise --limit"))
      << "both have it open";
  first.reset();
  EXPECT_THROW(small.open(manifest_of(other)), Error) << "one still has";

  const auto third = store.open(manifest);
  fill(*third, file);
  EXPECT_TRUE(third->complete());
  EXPECT_EQ(contents(*second), file);
}

TEST_F(ContentStoreTest, WhatIsLargerThanTheLimitIsRefusedAndRemovesNothing) {
  ContentStore small(folder, 6 * kChunk, "--limit");
  const Bytes other = random_bytes(kChunk, 9);
  fill(*small.open(manifest_of(other)), other);
  EXPECT_THAT(error_of([&] { small.open(manifest); }), HasSubstr("does not fit"));
  EXPECT_EQ(entries(), 1u);
}

// A limit on the size of files stands for a full disk.
TEST_F(ContentStoreTest, AFullDiskIsNoticedBeforeAnythingIsFetched) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2 * kChunk, 2 * kChunk};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { store.open(manifest); });
    ::_exit(error.find("does not fit there") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(ContentStoreTest, AFileThatIsThereIsAdopted) {
  const fs::path own = folder / "own";
  std::ofstream(own) << text_of(file);
  {
    const auto content = store.adopt(manifest, own);
    ASSERT_TRUE(content && content->complete());
    EXPECT_EQ(fs::hard_link_count(own), 2u);
    EXPECT_FALSE(store.remove(manifest.id())) << "it is in use";
    const auto again = store.adopt(manifest, own);  // into an entry that is in use
    EXPECT_TRUE(again && again->complete());
    fs::remove(own);
    EXPECT_EQ(read_text_file(content->path()), text_of(file));
  }
  // The store has a damaged part of the file, which the file repairs.
  {
    auto entry = store.open(manifest);
    std::fstream(entry->path(), std::ios::in | std::ios::out | std::ios::binary) << "wrong";
  }
  std::ofstream(own) << text_of(file);
  ASSERT_TRUE(store.adopt(manifest, own));
  EXPECT_TRUE(store.open(manifest)->complete());
  EXPECT_EQ(read_text_file(own), text_of(file));
}

TEST_F(ContentStoreTest, AnEmptyFileIsComplete) {
  const auto content = store.open(Manifest::of({}));
  EXPECT_TRUE(content->complete());
  EXPECT_THAT(content->missing(), IsEmpty());
}

}  // namespace
}  // namespace modelet::comm
