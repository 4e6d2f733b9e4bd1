// bring_files: puts files of a snapshot into a folder, from this disk or from their holders. One thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/content/snapshot.h"
#include "comm/content/store.h"
#include "node_agent/snapshots/holder_links.h"
#include "node_agent/snapshots/own_snapshots.h"

namespace modelet::agent {

struct BringOptions {
  double retry_seconds = 2;     // between two rounds over all holders
  double patience = 60;         // seconds after which it gives up a file that no holder sends
  std::function<void()> check;  // called several times a second, may throw
  // Called repeatedly while somebody else in this process fills an entry of the store: asks them to close
  // it.
  std::function<void(const std::string& address)> let_go;
  // The scheduler's store, if it is on this machine: a file in it is linked, and then checked. Null: it is
  // elsewhere.
  const comm::ContentStore* local_store = nullptr;
};

// Opens the entry of a snapshot's file in `store` and fetches what it lacks, from the file's holders one after
// the other and finally from the scheduler's store, round after round. Every chunk is checked against the
// file's address, so it does not matter which holder sends it, and damaged chunks are fetched again. Throws
// Error if nobody has the file; the text names the file and says what each holder answered.
std::unique_ptr<comm::StoredContent> fetch_file(comm::ContentStore& store, HolderLinks& links,
                                                const comm::SnapshotFile& file, uint64_t step,
                                                const BringOptions& options);

// Puts the files `names` of `snapshot` into `folder`, which is made if needed, and into `store`. For each
// file it tries the file in the folder, if it is right, then fetch_file(). Throws like it.
std::vector<HeldFile> bring_files(comm::ContentStore& store, HolderLinks& links,
                                  const comm::Snapshot& snapshot, std::span<const std::string> names,
                                  const std::filesystem::path& folder, const BringOptions& options);

}  // namespace modelet::agent
