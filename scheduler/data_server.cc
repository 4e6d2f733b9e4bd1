#include "scheduler/data_server.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/error.h"
#include "scheduler/core.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

constexpr double kTurn = 1;         // seconds between two looks at what nobody needs any more
constexpr size_t kMostOpen = 256;   // entries of the store: each holds a file
constexpr double kCloseAfter = 60;  // seconds without use: a run that needs it has been submitted by then

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

}  // namespace

DataServer::DataServer(const DataServerOptions& options, const std::string& listen,
                       const std::optional<msg::ServerKeys>& keys)
    : store_(options.store, options.store_bytes, "--store-mib of the scheduler"),
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
}

void DataServer::run() {
  double next_turn = 0;
  while (!stop_.is_set()) {
    if (const auto received = socket_.receive(kTurn, stop_.fd()))
      socket_.send(received->peer, answer(*received));  // a peer that is gone asks again
    if (clock_.now() < next_turn) continue;
    next_turn = clock_.now() + kTurn;
    close_unused();
  }
}

DataServer::Answer DataServer::answer(const msg::ServerSocket::Received& received) {
  try {
    if (const std::string reason = why_not(received.sender, received.message); !reason.empty())
      throw Error(reason);
    return std::visit(
        [this](const auto& message) -> Answer {
          if constexpr (requires { on(message); })
            return on(message);
          else
            throw Error("this is the scheduler's port for data, which knows nothing of runs");
        },
        received.message);
  } catch (const std::exception& error) {  // the disk's, too: whatever it is, the others are served
    if (refusals_.next())
      spdlog::info("refused a message about data: {} (number {})", error.what(), refusals_.count());
    return msg::RefusedT{{}, error.what()};
  }
}

DataServer::Answer DataServer::on(const msg::OfferT& message) {
  const auto manifest = comm::Manifest::parse(bytes_of(message.manifest));
  const std::string address = comm::to_text(manifest.id());
  if (!entries_.contains(address)) {
    close_unused();
    if (entries_.size() >= kMostOpen)
      throw Error(fmt::format(
          "{} files are open in the scheduler's store, the most that may be: try again in a minute",
          kMostOpen));
    auto content = store_.open(manifest);
    if (!content) throw Error("another process fills " + address + " in the scheduler's store");
    entries_[address].content = std::move(content);
  }
  comm::StoredContent& content = entry(address);
  if (!content.complete())
    spdlog::info("data {} of {} bytes: {} of {} chunks are sent to the store", address, manifest.bytes(),
                 content.missing().size(), manifest.chunks());
  return msg::WantedT{{}, address, content.missing()};
}

DataServer::Answer DataServer::on(const msg::PutChunkT& message) {
  comm::StoredContent& content = entry(message.data);
  content.put(message.chunk, bytes_of(message.bytes));
  return msg::ChunkStoredT{{}, message.data, message.chunk};
}

DataServer::Answer DataServer::on(const msg::FetchManifestT& message) {
  return msg::ManifestOfT{{}, message.data, message_bytes(entry(message.data).manifest().encode())};
}

DataServer::Answer DataServer::on(const msg::FetchChunkT& message) {
  const comm::StoredContent& content = entry(message.data);
  if (!content.has(message.chunk))
    throw Error(fmt::format("chunk {} of data {} is not in the scheduler's store: submit the run again",
                            message.chunk, message.data));
  try {
    return msg::ChunkT{{}, message.data, message.chunk, message_bytes(content.read(message.chunk))};
  } catch (const FormatError& error) {
    entries_.erase(message.data);  // when it is offered again, all of it is looked at
    throw Error(std::string(error.what()) + " in the scheduler's store: submit the run again");
  }
}

// An open entry, or one of the store: since when the scheduler was started nobody may have asked for it.
comm::StoredContent& DataServer::entry(const std::string& address) {
  auto found = entries_.find(address);
  if (found == entries_.end()) {
    const auto manifest = store_.manifest(comm::parse_content_id(address));
    auto content = manifest ? store_.open(*manifest) : nullptr;
    if (!content) throw Error("the scheduler's store has no data " + address + ": submit the run again");
    found = entries_.emplace(address, Entry{.content = std::move(content)}).first;
  }
  found->second.used = clock_.now();
  return *found->second.content;
}

void DataServer::close_unused() {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [this](const auto& open) {
    return !kept_.contains(open.first) && clock_.now() - open.second.used > kCloseAfter;
  });
}

}  // namespace modelet::scheduler
