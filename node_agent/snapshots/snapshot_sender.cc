#include "node_agent/snapshots/snapshot_sender.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <variant>

#include "base/error.h"
#include "base/system/file.h"
#include "comm/content/transfer/transfer.h"
#include "node_agent/snapshots/bring_files.h"

namespace modelet::agent {

namespace fs = std::filesystem;

namespace {

class CannotRead : public Error {
 public:
  using Error::Error;
};

}  // namespace

void SnapshotSender::work(const OwnSnapshots::Task& task) {
  try {
    std::visit([this](const auto& any) { carry_out(any); }, task);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {  // also the disk's errors: the run goes on
    around_.check();                       // its error is not the task's
    own_.failed(clock_.now(), task, error.what());
  }
}

void SnapshotSender::carry_out(const OwnSnapshots::Adopt& task) {
  const fs::path path = task.folder / task.name;
  const auto manifest = comm::Manifest::of(ReadFile(path), comm::kChunkBytes, around_.check);
  std::shared_ptr<comm::StoredContent> entry = around_.store.adopt(manifest, path);
  if (!entry) {
    around_.let_go(to_text(manifest.id()));
    throw Error(task.name + " is in use");
  }
  own_.adopted(task, {task.name, manifest.id(), manifest.bytes(), {}, std::move(entry)});
}

void SnapshotSender::carry_out(const OwnSnapshots::Send& task) {
  const comm::StoredContent& entry = *task.file.entry;
  if (task.to.empty() && around_.local_store != nullptr) {
    if (!around_.local_store->adopt(entry.manifest(), entry.path()))
      throw Error(task.file.name + " is in use in the scheduler's store");
  } else {
    std::optional<ReadFile> file;
    const auto read = [&](uint64_t offset, std::span<std::byte> to) {
      try {
        if (!file) file.emplace(entry.path());
        file->read(offset, to);
      } catch (const Error& error) {
        throw CannotRead(error.what());
      }
    };
    try {
      comm::send_content(around_.links.to(task.to), entry.manifest(), read, {task.run, task.step});
    } catch (const CannotRead& error) {
      around_.links.give_up(task.to);
      return own_.could_not_read(clock_.now(), task, error.what());
    } catch (...) {
      around_.links.give_up(task.to);
      throw;
    }
  }
  own_.sent(task);
}

void SnapshotSender::carry_out(const OwnSnapshots::Repair& task) {
  const comm::SnapshotFile file{task.file.name, task.file.content, task.file.bytes, task.file.holders};
  fetch_file(around_.store, around_.links, file, task.step,
             {.patience = 0, .check = around_.check, .let_go = around_.let_go});
}

void SnapshotSender::remove(const OwnSnapshots::Forgotten& snapshot) {
  if (snapshot.folder.empty()) return;
  const std::set<comm::ContentId> needed = own_.contents();
  if (around_.local_store != nullptr)
    for (const comm::ContentId& content : snapshot.contents)
      if (!needed.contains(content)) around_.local_store->remove(content);
  std::error_code gone;  // ignored: the folder may have other files, too
  for (const std::string& name : snapshot.names) fs::remove(snapshot.folder / name, gone);
  fs::remove(snapshot.folder, gone);
}

}  // namespace modelet::agent
