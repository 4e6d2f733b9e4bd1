// Files on their way between this process and a port for data (data_server.h), over a DataLink: whole, or the
// chunks that are missing where they go. All throw as DataLink::ask(); fetching also throws if what comes is
// wrong. One thread for a link.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/content/content.h"
#include "comm/content/store.h"
#include "comm/content/transfer/data_link.h"

namespace modelet::comm {

// How far a transfer is: told with each chunk.
using TellBytes = std::function<void(uint64_t bytes, uint64_t total_bytes)>;

// The snapshot that a file is a part of. Run 0: it is data of a run that will be submitted.
struct PartOf {
  uint64_t run = 0, step = 0;
};
// Puts a file into the other side's store; only chunks that it lacks travel.
void send_content(DataLink& link, const Manifest& manifest, std::span<const std::byte> file,
                  const PartOf& part_of = {}, const TellBytes& tell = {});

Manifest fetch_manifest(DataLink& link, const ContentId& id);
// Chunks that `content` lacks, into it.
void fetch_chunks(DataLink& link, StoredContent& content, std::span<const uint32_t> chunks,
                  const TellBytes& tell = {});

}  // namespace modelet::comm
