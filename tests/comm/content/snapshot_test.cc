// Snapshots as text: what is written can be read again, and nothing else is accepted.
#include "comm/content/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::comm {
namespace {

Snapshot some_snapshot() {
  const ContentId content = content_id({});
  return {.epoch = 3,
          .step = 1600,
          .keep = true,
          .files = {{.name = "index.json", .content = content, .bytes = 4711, .holders = {"alpha", ""}},
                    {.name = "output.00000000-00004621.safetensors",
                     .content = content,
                     .bytes = 0,
                     .holders = {}}}};
}

TEST(SnapshotTest, TextKeepsEverything) {
  EXPECT_EQ(parse_snapshot(format_snapshot(some_snapshot())), some_snapshot());
  const std::vector<Snapshot> two = {some_snapshot(), {}};
  EXPECT_EQ(parse_snapshots(format_snapshots(two)), two);
}

TEST(SnapshotTest, NamesStayInTheFolder) {
  for (const std::string name : {"", ".", "..", "../index.json", "a/b", ".hidden", "a\nb", "a b"}) {
    Snapshot snapshot = some_snapshot();
    snapshot.files.front().name = name;
    EXPECT_THROW(parse_snapshot(format_snapshot(snapshot)), FormatError) << name;
  }
}

TEST(SnapshotTest, AFileIsListedOnce) {
  Snapshot snapshot = some_snapshot();
  snapshot.files.push_back(snapshot.files.front());
  EXPECT_THROW(parse_snapshot(format_snapshot(snapshot)), FormatError);
}

TEST(SnapshotTest, ListsAreLimited) {
  Snapshot snapshot = some_snapshot();
  snapshot.files.front().holders.assign(kMostHolders, "alpha");
  EXPECT_NO_THROW(parse_snapshot(format_snapshot(snapshot)));
  snapshot.files.front().holders.emplace_back("beta");
  EXPECT_THROW(parse_snapshot(format_snapshot(snapshot)), FormatError);
}

// However the text is damaged, it is refused with a FormatError, or is still a snapshot that can be written.
TEST(SnapshotTest, MutatedTextIsRefusedOrASnapshot) {
  const std::string text = format_snapshot(some_snapshot());
  Rng rng(7);
  for (int i = 0; i < 5000; ++i) {
    std::string mutated = text;
    for (uint64_t changes = 1 + rng.below(3); changes > 0; --changes)
      mutated[rng.below(mutated.size())] = static_cast<char>(rng.below(256));
    try {
      const Snapshot snapshot = parse_snapshot(mutated);
      EXPECT_EQ(parse_snapshot(format_snapshot(snapshot)), snapshot);
    } catch (const FormatError&) {
    }
  }
}

}  // namespace
}  // namespace modelet::comm
