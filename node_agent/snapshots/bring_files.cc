#include "node_agent/snapshots/bring_files.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "comm/content/transfer/transfer.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;
using comm::Manifest;
using comm::StoredContent;
using Check = std::function<void()>;

constexpr double kPoll = 0.1;  // seconds between two calls of `check`

// The manifest of the file at `path`; nothing if it does not exist, has other content or cannot be read.
std::optional<Manifest> manifest_if_right(const fs::path& path, const comm::SnapshotFile& file,
                                          const Check& check) {
  std::error_code none;
  if (fs::file_size(path, none) != file.bytes || none) return std::nullopt;
  try {
    Manifest manifest = Manifest::of(ReadFile(path), comm::kChunkBytes, check);
    if (manifest.id() == file.content) return manifest;
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    check();  // its Error, which it throws again, is not the disk's
    log_warning("{}; another node is asked for it", error.what());
  }
  return std::nullopt;
}

void rest(double seconds, const Check& check) {
  for (const Stopwatch watch; watch.seconds() < seconds;) {
    check();
    std::this_thread::sleep_for(Seconds(kPoll));
  }
}

// Calls open(), which returns null while somebody else fills the entry, until it succeeds.
template <class Open>
std::unique_ptr<StoredContent> opened(const Manifest& manifest, const BringOptions& options,
                                      const Open& open) {
  for (;;) {
    if (auto content = open()) return content;
    options.let_go(to_text(manifest.id()));
    rest(kPoll, options.check);
  }
}

// Fetches one file into the store.
class Fetching {
 public:
  Fetching(comm::ContentStore& store, HolderLinks& links, const comm::SnapshotFile& file,
           const BringOptions& options)
      : store_(store), links_(links), file_(file), options_(options), holders_(file.holders) {
    // The scheduler's store may have the file, too: the node that sent it there may have been lost before
    // it could say so.
    if (std::ranges::find(holders_, "") == holders_.end()) holders_.emplace_back();
  }

  // Asks each holder once, since each may have another part. Returns the entry if it is whole now; else
  // null.
  std::unique_ptr<StoredContent> round() {
    complaints_.clear();
    auto manifest = store_.manifest(file_.content);
    std::unique_ptr<StoredContent> content;
    if (manifest) content = open(*manifest);
    for (const std::string& holder : holders_) {
      if (content && content->complete()) break;
      if (!links_.knows(holder)) continue;
      try {
        comm::DataLink& link = links_.to(holder);
        if (!content) {
          manifest = comm::fetch_manifest(link, file_.content);
          content = open(*manifest);
        }
        const auto missing = content->missing();
        if (!missing.empty()) comm::fetch_chunks(link, *content, missing);
      } catch (const Interrupted&) {
        links_.give_up(holder);  // an answer may still be on its way
        throw;
      } catch (const Error& error) {
        links_.give_up(holder);
        options_.check();  // may throw an Error of its own, which must not count as the holder's
        complaints_ += fmt::format("{}{}", complaints_.empty() ? "" : "; ", error.what());
      }
    }
    return content && content->complete() ? std::move(content) : nullptr;
  }
  const std::string& complaints() const { return complaints_; }

 private:
  std::unique_ptr<StoredContent> open(const Manifest& manifest) const {
    return opened(manifest, options_, [&] { return store_.open(manifest, options_.check); });
  }

  comm::ContentStore& store_;
  HolderLinks& links_;
  const comm::SnapshotFile& file_;
  const BringOptions& options_;
  std::vector<std::string> holders_;  // asked in this order
  std::string complaints_;            // of the last round
};

void place(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  fs::remove(to, failure);
  fs::create_hard_link(from, to, failure);
  if (failure) fs::copy_file(from, to, fs::copy_options::overwrite_existing, failure);
  if (failure) throw Error(to.string() + ": " + failure.message() + " (bringing a file of a snapshot)");
}

}  // namespace

std::unique_ptr<StoredContent> fetch_file(comm::ContentStore& store, HolderLinks& links,
                                          const comm::SnapshotFile& file, uint64_t step,
                                          const BringOptions& options) {
  Fetching fetching(store, links, file, options);
  std::unique_ptr<StoredContent> entry;
  for (const Stopwatch watch; !(entry = fetching.round()); rest(options.retry_seconds, options.check))
    if (watch.seconds() > options.patience)
      throw Error(fmt::format("{} of the snapshot of step {} cannot be had{}{}", file.name, step,
                              fetching.complaints().empty() ? ": nobody that holds it is known" : ": ",
                              fetching.complaints()));
  return entry;
}

std::vector<HeldFile> bring_files(comm::ContentStore& store, HolderLinks& links,
                                  const comm::Snapshot& snapshot, std::span<const std::string> names,
                                  const fs::path& folder, const BringOptions& options) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw Error(folder.string() + ": " + failure.message() + " (making a folder for a snapshot)");
  std::vector<HeldFile> held;
  for (const std::string& name : names) {
    const auto file = std::ranges::find(snapshot.files, name, &comm::SnapshotFile::name);
    if (file == snapshot.files.end())
      throw Error(fmt::format("the snapshot of step {} has no file {}", snapshot.step, name));
    std::shared_ptr<StoredContent> entry;
    if (options.local_store != nullptr && !fs::exists(folder / name))
      options.local_store->link_to(file->content, folder / name);
    if (const auto manifest = manifest_if_right(folder / name, *file, options.check)) {
      entry = opened(*manifest, options, [&] { return store.adopt(*manifest, folder / name); });
    } else {
      entry = fetch_file(store, links, *file, snapshot.step, options);
      place(entry->path(), folder / name);
    }
    held.push_back({name, file->content, file->bytes, file->holders, std::move(entry)});
  }
  return held;
}

}  // namespace modelet::agent
