// bring_files: files of a snapshot into a folder, from this disk or from their holders. One thread.
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

namespace modelet::agent {

struct BringOptions {
  double retry_seconds = 2;     // between two rounds over all holders
  double patience = 60;         // seconds, after which a file that no holder gives cannot be had
  std::function<void()> check;  // called several times a second, may throw
  // Called while somebody else in this process fills an entry of the store, until it is let go.
  std::function<void(const std::string& address)> let_go;
  // The scheduler's, if it is on this machine: a file that it has is linked, and then checked. Null: there is none.
  const comm::ContentStore* local_store = nullptr;
};

// A file that lies in the store of what this node holds, open.
struct HeldFile {
  std::string name;
  comm::ContentId content;
  uint64_t bytes = 0;
  std::vector<std::string> holders;  // others that are known to have it
  std::shared_ptr<comm::StoredContent> entry;
};

// Puts the files `names` of `snapshot` into `folder`, which is made if need be, and into `store`. A file that
// is in the folder and right stays; else it is taken from the store; else from its holders, and at last from the
// scheduler's store, one after the other, round after round. What comes is checked against its address, chunk by
// chunk, so it does not matter which holder sends what. Error that names the file and what each holder said if
// none has it.
std::vector<HeldFile> bring_files(comm::ContentStore& store, HolderLinks& links,
                                  const comm::Snapshot& snapshot, std::span<const std::string> names,
                                  const std::filesystem::path& folder, const BringOptions& options);

}  // namespace modelet::agent
