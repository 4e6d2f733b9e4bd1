// Sends files to a port for data (data_server.h) and fetches files from it, over a DataLink. Only chunks
// that the receiving side lacks travel. All functions throw like DataLink::ask(). Those that fetch also
// throw if what arrives is wrong. One thread for each link.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/content/content.h"
#include "comm/content/store.h"
#include "comm/content/transfer/data_link.h"

namespace modelet::comm {

// Called after each chunk, with the progress of a transfer.
using OnBytes = std::function<void(uint64_t bytes, uint64_t total_bytes)>;

// The snapshot that a file belongs to. Run 0: the file is data of a run that will be submitted.
struct SnapshotId {
  uint64_t run = 0, step = 0;
};
// Puts a file into the other side's store. Only chunks that the store lacks travel.
void send_content(DataLink& link, const Manifest& manifest, const ReadBytes& read,
                  const SnapshotId& snapshot = {}, const OnBytes& on_bytes = {});

Manifest fetch_manifest(DataLink& link, const ContentId& id);
// Fetches these chunks, which `content` lacks, into it.
void fetch_chunks(DataLink& link, StoredContent& content, std::span<const uint32_t> chunks,
                  const OnBytes& on_bytes = {});

}  // namespace modelet::comm
