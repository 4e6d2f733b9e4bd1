#include "scheduler/data_server.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "base/error.h"
#include "scheduler/core.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

constexpr double kTurn = 1;        // seconds between two looks at what nobody needs any more
constexpr size_t kMostOpen = 256;  // entries of the store: each holds a file

std::string data_endpoint(const std::string& listen, uint16_t port) {
  const std::string endpoint = msg::with_port(listen.c_str(), port).endpoint;
  return port != 0 ? endpoint : endpoint.substr(0, endpoint.rfind(':')) + ":*";
}

std::span<const std::byte> bytes_of(const std::vector<uint8_t>& bytes) {
  return std::as_bytes(std::span(bytes));
}

std::vector<uint8_t> message_bytes(std::span<const std::byte> bytes) {
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

msg::WantedT wanted(const std::string& address, const comm::StoredContent& content) {
  if (!content.complete())
    log_info("data {} of {} bytes: {} of {} chunks are sent to the store", address,
             content.manifest().bytes(), content.missing().size(), content.manifest().chunks());
  return {{}, address, content.missing()};
}

}  // namespace

DataServer::DataServer(const DataServerOptions& options, const std::string& listen,
                       const std::optional<msg::ServerKeys>& keys)
    : options_(options),
      store_(options.store, options.store_bytes, "--store-mib of the scheduler"),
      socket_(data_endpoint(listen, options.port), keys, msg::Traffic::kChunks),
      thread_([this] { run(); }) {}

DataServer::~DataServer() {
  stop_.set();
  thread_.join();
}

uint16_t DataServer::port() const {
  const std::string& endpoint = socket_.endpoint();
  return static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
}

void DataServer::keep(std::set<std::string> addresses) {
  const std::lock_guard lock(mutex_);
  kept_ = std::move(addresses);
  kept_.erase("");  // of runs whose data is not sent
}

void DataServer::run() {
  double next_turn = 0;
  while (!stop_.is_set()) {
    const double wait = next_to_verify() == entries_.end() ? kTurn : 0;
    if (const auto received = socket_.receive(wait, stop_.fd()))
      if (auto now = answer(*received))
        socket_.send(received->peer, std::move(*now));  // if it is gone, it asks again
    if (const auto next = next_to_verify(); next != entries_.end()) verify_next(next);
    if (clock_.now() < next_turn) continue;
    next_turn = clock_.now() + kTurn;
    close_unused();
    open_what_runs_need();
    for (const auto& [address, entry] : entries_)
      for (const std::string& peer : entry.offered_by)
        socket_.send(peer, msg::LaterT{{}, "it looks at what it has of data " + address});
  }
}

std::optional<DataServer::Answer> DataServer::answer(const msg::ServerSocket::Received& received) {
  try {
    if (const std::string reason = why_not(received.sender, received.message); !reason.empty())
      throw Error(reason);
    if (!has_place(received.peer, received.message))
      return msg::LaterT{{}, fmt::format("it serves {} connections, the most at once", served_.size())};
    return std::visit(
        [&](const auto& message) -> std::optional<Answer> {
          if constexpr (requires { on(message); })
            return on(message);
          else if constexpr (requires { on(received.peer, message); })
            return on(received.peer, message);
          else
            throw Error("this is the scheduler's port for data, which knows nothing of runs");
        },
        received.message);
  } catch (const std::exception& error) {  // the disk's, too: whatever it is, the others are served
    return refusal(error);
  }
}

DataServer::Answer DataServer::refusal(const std::exception& error) {
  if (refusals_.next())
    log_info("refused a message about data: {} (number {})", error.what(), refusals_.count());
  return msg::RefusedT{{}, error.what()};
}

bool DataServer::has_place(const std::string& peer, const msg::ToSchedulerMessage& message) {
  const double now = clock_.now();
  if (!served_.contains(peer)) {
    // A chunk that is sent here is here already: it is taken, and gives no place.
    if (std::holds_alternative<msg::PutChunkT>(message)) return true;
    std::erase_if(served_, [&](const auto& place) { return now - place.second >= options_.place_seconds; });
    if (served_.size() >= options_.most_served) return false;
  }
  served_[peer] = now;
  return true;
}

std::optional<DataServer::Answer> DataServer::on(const std::string& peer, const msg::OfferT& message) {
  const auto manifest = comm::Manifest::parse(bytes_of(message.manifest));
  const std::string address = comm::to_text(manifest.id());
  Entry& entry = opened(address, manifest);
  if (!entry.content->verified()) {
    entry.offered_by.insert(peer);
    return std::nullopt;
  }
  return wanted(address, *entry.content);
}

DataServer::Answer DataServer::on(const msg::PutChunkT& message) {
  entry(message.data).put(message.chunk, bytes_of(message.bytes));
  return msg::ChunkStoredT{{}, message.data, message.chunk};
}

DataServer::Answer DataServer::on(const msg::FetchManifestT& message) {
  return msg::ManifestOfT{{}, message.data, message_bytes(entry(message.data).manifest().encode())};
}

DataServer::Answer DataServer::on(const msg::FetchChunkT& message) {
  comm::StoredContent& content = entry(message.data);
  if (message.chunk >= content.manifest().chunks())
    throw Error(fmt::format("data {} has {} chunks, no number {}", message.data, content.manifest().chunks(),
                            message.chunk));
  if (const auto bytes = content.read(message.chunk))
    return msg::ChunkT{{}, message.data, message.chunk, message_bytes(*bytes)};
  // One that was complete is damaged: when it is offered again, all of it is looked at.
  if (!content.writable()) entries_.erase(message.data);
  throw Error(
      fmt::format("chunk {} of data {} is not in the scheduler's store, or damaged: submit the run again",
                  message.chunk, message.data));
}

// An open entry, or one of the store: since when the scheduler was started nobody may have asked for it.
comm::StoredContent& DataServer::entry(const std::string& address) {
  if (const auto found = entries_.find(address); found != entries_.end()) {
    found->second.used = clock_.now();
    return *found->second.content;
  }
  const auto manifest = store_.manifest(comm::parse_content_id(address));
  if (!manifest) throw Error("the scheduler's store has no data " + address + ": submit the run again");
  return *opened(address, *manifest).content;
}

// Opens it if it is not open; nothing of it is looked at for that.
DataServer::Entry& DataServer::opened(const std::string& address, const comm::Manifest& manifest) {
  auto found = entries_.find(address);
  if (found == entries_.end()) {
    close_unused();
    open_what_runs_need();  // before there is need of room
    if (entries_.size() >= kMostOpen)
      throw Error(fmt::format(
          "{} files are open in the scheduler's store, the most that may be: try again in a few minutes",
          kMostOpen));
    auto content = store_.open_unverified(manifest);
    if (!content) throw Error("another process fills " + address + " in the scheduler's store");
    found = entries_.insert_or_assign(address, Entry{.content = std::move(content)}).first;
  }
  found->second.used = clock_.now();
  return found->second;
}

// Of several the one that somebody waits for.
DataServer::Entries::iterator DataServer::next_to_verify() {
  auto next = entries_.end();
  for (auto open = entries_.begin(); open != entries_.end(); ++open) {
    if (open->second.content->verified()) continue;
    if (!open->second.offered_by.empty()) return open;
    next = open;
  }
  return next;
}

void DataServer::verify_next(Entries::iterator open) {
  auto& [address, entry] = *open;
  try {
    entry.content->verify_next();
    if (!entry.content->verified()) return;
    if (!entry.content->complete() && !entry.content->writable()) {  // damaged, and others use it
      entry.content->remove();
      auto anew = store_.open_unverified(entry.content->manifest());
      if (!anew) throw Error("another process fills " + address + " in the scheduler's store");
      entry.content = std::move(anew);
      if (!entry.content->verified()) return;
    }
    for (const std::string& peer : std::exchange(entry.offered_by, {}))
      socket_.send(peer, wanted(address, *entry.content));
  } catch (const std::exception& error) {  // the disk's, or of somebody who has it
    for (const std::string& peer : entry.offered_by) socket_.send(peer, refusal(error));
    entries_.erase(open);
  }
}

// What is open is not removed from the store, by nobody.
void DataServer::open_what_runs_need() {
  for (const std::string& address : kept()) {
    if (entries_.contains(address) || entries_.size() >= kMostOpen) continue;
    try {
      const auto manifest = store_.manifest(comm::parse_content_id(address));
      auto content = manifest ? store_.open_unverified(*manifest) : nullptr;
      if (content) entries_[address] = {.content = std::move(content), .used = clock_.now()};
    } catch (const std::exception& error) {  // of this one; the run that needs it will be told
      if (refusals_.next()) log_warning("data {} of a run cannot be opened: {}", address, error.what());
    }
  }
}

void DataServer::close_unused() {
  const std::set<std::string> needed = kept();
  std::erase_if(entries_, [&](const auto& open) {
    return !needed.contains(open.first) && clock_.now() - open.second.used > options_.close_seconds;
  });
}

std::set<std::string> DataServer::kept() {
  const std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace modelet::scheduler
