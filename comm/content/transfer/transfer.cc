#include "comm/content/transfer/transfer.h"

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/log.h"
#include "comm/content/transfer/bytes.h"

namespace modelet::comm {
namespace {

using Reply = DataLink::Reply;

constexpr size_t kMostWrongChunks = 3;  // in one call of fetch_chunks()

uint64_t nothing(uint32_t) { return 0; }

std::vector<uint32_t> wanted_chunks(DataLink& link, const Manifest& manifest, const SnapshotId& snapshot) {
  control::WantedT wanted;
  link.ask(
      {0},
      [&](uint32_t) {
        control::OfferT offer;
        offer.manifest = message_bytes(manifest.encode());
        offer.run = snapshot.run;
        offer.step = snapshot.step;
        return offer;
      },
      [&](control::FromSchedulerMessage& message, uint32_t) {
        auto* reply = std::get_if<control::WantedT>(&message);
        if (reply == nullptr || reply->data != to_text(manifest.id())) return Reply::kOther;
        wanted = std::move(*reply);
        return Reply::kReply;
      },
      nothing);
  for (const uint32_t chunk : wanted.chunks)
    if (chunk >= manifest.chunks()) throw FormatError(link.who() + " asks for a chunk that does not exist");
  return std::move(wanted.chunks);
}

uint64_t sum_of(const Manifest& manifest, std::span<const uint32_t> chunks) {
  uint64_t bytes = 0;
  for (const uint32_t chunk : chunks) bytes += manifest.chunk_bytes(chunk);
  return bytes;
}

}  // namespace

void send_content(DataLink& link, const Manifest& manifest, const ReadBytes& read, const SnapshotId& snapshot,
                  const OnBytes& on_bytes) {
  const std::string address = to_text(manifest.id());
  const std::vector<uint32_t> wanted = wanted_chunks(link, manifest, snapshot);
  const uint64_t total = sum_of(manifest, wanted);
  uint64_t bytes = 0;
  link.ask(
      {wanted.begin(), wanted.end()},
      [&](uint32_t chunk) {
        control::PutChunkT put{{}, address, chunk, std::vector<uint8_t>(manifest.chunk_bytes(chunk))};
        read(manifest.chunk_begin(chunk), std::as_writable_bytes(std::span(put.bytes)));
        return put;
      },
      [&](control::FromSchedulerMessage& message, uint32_t chunk) {
        const auto* reply = std::get_if<control::ChunkStoredT>(&message);
        if (reply == nullptr || reply->data != address || reply->chunk != chunk) return Reply::kOther;
        bytes += manifest.chunk_bytes(chunk);
        if (on_bytes) on_bytes(bytes, total);
        return Reply::kReply;
      },
      [&](uint32_t chunk) { return manifest.chunk_bytes(chunk); });
}

Manifest fetch_manifest(DataLink& link, const ContentId& id) {
  const std::string address = to_text(id);
  std::optional<Manifest> manifest;
  link.ask(
      {0},
      [&](uint32_t) {
        return control::FetchManifestT{{}, address};
      },
      [&](control::FromSchedulerMessage& message, uint32_t) {
        const auto* reply = std::get_if<control::ManifestOfT>(&message);
        if (reply == nullptr || reply->data != address) return Reply::kOther;
        manifest = Manifest::parse(bytes_of(reply->manifest));
        return Reply::kReply;
      },
      nothing);
  if (manifest->id() != id) throw FormatError(link.who() + " sent the manifest of other data");
  return std::move(*manifest);
}

void fetch_chunks(DataLink& link, StoredContent& content, std::span<const uint32_t> chunks,
                  const OnBytes& on_bytes) {
  const Manifest& manifest = content.manifest();
  const std::string address = to_text(manifest.id());
  const uint64_t total = sum_of(manifest, chunks);
  uint64_t bytes = 0;
  size_t wrong = 0;
  link.ask(
      {chunks.begin(), chunks.end()},
      [&](uint32_t chunk) {
        return control::FetchChunkT{{}, address, chunk};
      },
      [&](control::FromSchedulerMessage& message, uint32_t chunk) {
        const auto* reply = std::get_if<control::ChunkT>(&message);
        if (reply == nullptr || reply->data != address || reply->chunk != chunk) return Reply::kOther;
        try {
          content.put(chunk, bytes_of(reply->bytes));
        } catch (const FormatError& error) {
          if (++wrong >= kMostWrongChunks) throw Error(link.who() + " sends wrong data: " + error.what());
          log_warning("asks again: {}", error.what());
          return Reply::kWrong;
        }
        bytes += manifest.chunk_bytes(chunk);
        if (on_bytes) on_bytes(bytes, total);
        return Reply::kReply;
      },
      [&](uint32_t chunk) { return manifest.chunk_bytes(chunk); });
}

}  // namespace modelet::comm
