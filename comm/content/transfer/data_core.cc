#include "comm/content/transfer/data_core.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "comm/content/transfer/bytes.h"

namespace modelet::comm {
namespace {

namespace msg = control;

// If queued chunks would take longer than this many seconds to leave, peers are told to ask later.
constexpr double kLongestQueue = 1;

// Another process is filling or checking the entry.
class Busy : public Error {
 public:
  Busy(const std::string& address, const StoreNames& names)
      : Error("another process fills or checks data " + address + " in " + names.store) {}
};

// At most half of the files that this process may have open are entries of the store.
DataServerOptions with_descriptors(DataServerOptions options) {
  const size_t most = std::max<size_t>(descriptor_limit() / 2, 2);
  options.most_open = std::min(options.most_open, most);
  options.most_open_of_key = std::min(options.most_open_of_key, most / 2);
  return options;
}

}  // namespace

DataCore::DataCore(const DataServerOptions& options)
    : options_(with_descriptors(options)), store_(options.store, options.store_bytes, options.names.limit) {}

void DataCore::keep(std::map<std::string, std::string> addresses, std::set<std::string> remove_last) {
  kept_ = std::move(addresses);
  kept_.erase("");  // runs whose data is not in the store have no address
  std::set<std::string> kept;
  for (const auto& [address, key] : kept_) kept.insert(address);
  store_.protect(std::move(kept), std::move(remove_last));
}

void DataCore::close(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    kept_.erase(address);
    entries_.erase(address);
  }
}

DataCore::Replies DataCore::handle(double now, const msg::ServerSocket::Received& received) {
  now_ = now;
  Replies replies;
  if (auto message = reply(received)) replies.push_back({received.peer, std::move(*message)});
  return replies;
}

DataCore::Replies DataCore::tick(double now) {
  now_ = now;
  close_unused();
  open_what_runs_need();
  Replies replies;
  for (auto& [address, entry] : entries_) {
    if (entry.content->verified()) {
      request_missing(address, entry, replies);
    } else {
      for (const std::string& peer : entry.offered_by)
        replies.push_back({peer, msg::LaterT{{}, "it checks what it has of data " + address, true}});
    }
  }
  return replies;
}

DataCore::Message DataCore::wanted(const std::string& address, Entry& entry) {
  const StoredContent& content = *entry.content;
  if (!content.complete())
    log_for_owner("data {} of {} bytes: {} of {} chunks are sent to the store", address,
                  content.manifest().bytes(), content.missing().size(), content.manifest().chunks());
  note_if_whole(entry);
  return msg::WantedT{{}, address, content.missing()};
}

void DataCore::note_if_whole(Entry& entry) {
  if (entry.of_snapshot && options_.on_whole_snapshot && entry.content->complete())
    options_.on_whole_snapshot(*entry.content);
}

void DataCore::request_missing(const std::string& address, Entry& entry, Replies& replies) {
  if (!entry.offered_by.empty()) entry.used = now_;
  for (const std::string& peer : std::exchange(entry.offered_by, {})) {
    try {
      replies.push_back({peer, wanted(address, entry)});
    } catch (const std::exception& error) {  // an error of the disk
      replies.push_back({peer, refusal(error)});
    }
  }
}

void DataCore::gone(const std::string& peer) {
  for (auto& [address, entry] : entries_) entry.offered_by.erase(peer);
  served_.erase(peer);
}

void DataCore::undelivered(const std::string& peer, const std::string& address) {
  if (const auto found = entries_.find(address); found != entries_.end())
    found->second.offered_by.insert(peer);
}

std::optional<DataCore::Message> DataCore::reply(const msg::ServerSocket::Received& received) {
  try {
    if (options_.is_early && options_.is_early(received.sender, received.message))
      return msg::LaterT{{},
                         received.sender.role == Role::kAgent
                             ? "no run for which this agent works needs this data now"
                             : "it is not known yet whose this data is"};
    if (options_.why_not)
      if (const std::string reason = options_.why_not(received.sender, received.message); !reason.empty())
        throw Error(reason);
    if (!has_place(received))
      return msg::LaterT{{}, fmt::format("it serves {} connections, as many as it may", served_.size())};
    return std::visit(
        [&](const auto& message) -> std::optional<Message> {
          if constexpr (requires { on(message); })
            return on(message);
          else if constexpr (requires { on(received, message); })
            return on(received, message);
          else
            throw Error("this is a port for data (" + options_.names.store +
                        "), which knows nothing of runs");
        },
        received.message);
  } catch (const Busy& busy) {
    return msg::LaterT{{}, busy.what()};
  } catch (const std::exception& error) {  // also the disk's errors: the other peers are still served
    return refusal(error);
  }
}

DataCore::Message DataCore::refusal(const std::exception& error) {
  if (refusals_.next())
    log_for_owner("refused a message about data: {} (number {})", error.what(), refusals_.count());
  return msg::RefusedT{{}, error.what()};
}

bool DataCore::has_place(const msg::ServerSocket::Received& received) {
  if (!served_.contains(received.peer)) {
    // The bytes of a chunk have already arrived, so they are accepted, but they give no place.
    if (std::holds_alternative<msg::PutChunkT>(received.message)) return true;
    std::erase_if(served_,
                  [&](const auto& place) { return now_ - place.second.asked >= options_.place_seconds; });
    if (served_.size() >= options_.most_served && !take_place_of_another_key(received.sender.name))
      return false;
  }
  served_[received.peer] = {now_, received.sender.name};
  return true;
}

// Frees a place if another key would still have at least as many as `key` then has. It is taken from the
// key with the most places: from its connection that asked longest ago.
bool DataCore::take_place_of_another_key(const std::string& key) {
  std::map<std::string, size_t> places;
  for (const auto& [peer, place] : served_) ++places[place.key];
  const auto most = std::ranges::max_element(places, {}, [](const auto& of) { return of.second; });
  if (most == places.end() || most->second <= places[key] + 1) return false;
  auto longest = served_.end();
  for (auto place = served_.begin(); place != served_.end(); ++place)
    if (place->second.key == most->first &&
        (longest == served_.end() || place->second.asked < longest->second.asked))
      longest = place;
  served_.erase(longest);
  return true;
}

std::optional<DataCore::Message> DataCore::on(const msg::ServerSocket::Received& received,
                                              const msg::OfferT& message) {
  const auto manifest = Manifest::parse(bytes_of(message.manifest));
  const std::string address = to_text(manifest.id());
  const std::string& key = received.sender.name;
  if (!key.empty() && !has_sent(key, address)) return offered_first(received, message, manifest);
  Entry& entry = opened(address, manifest, key);
  entry.offered = true;
  entry.of_snapshot = message.run != 0;
  if (!entry.content->verified()) {
    entry.offered_by.insert(received.peer);
    return std::nullopt;
  }
  return wanted(address, entry);
}

// A key offers a file of which it has not sent everything yet. Nothing here depends on whether the store has it.
DataCore::Message DataCore::offered_first(const msg::ServerSocket::Received& received,
                                          const msg::OfferT& message, const Manifest& manifest) {
  const std::string address = to_text(manifest.id());
  const std::string& key = received.sender.name;
  if (const auto sent = sent_[key].find(address);
      sent != sent_[key].end() && (sent->second.to_come == 0 || !store_.manifest(manifest.id())))
    sent_[key].erase(sent);  // what was sent was removed to make room
  const auto known = sent_[key].find(address);
  if (known == sent_[key].end() || !entries_.contains(address)) {
    const bool is_new = known == sent_[key].end();
    require_quota(key, address, is_new ? message.manifest.size() + manifest.bytes() : known->second.to_come,
                  true);
    require_place(key);
    store_.require_room(manifest.bytes());
  }
  Entry& entry = opened(address, manifest, key);
  entry.offered = true;
  entry.of_snapshot = message.run != 0;
  const Sent& sent = sent_[key]
                         .try_emplace(address, Sent{message.manifest.size(), manifest.bytes(),
                                                    std::vector<bool>(manifest.chunks())})
                         .first->second;
  msg::WantedT wanted{{}, address, {}};
  for (uint32_t chunk = 0; chunk < sent.chunks.size(); ++chunk)
    if (!sent.chunks[chunk]) wanted.chunks.push_back(chunk);
  if (wanted.chunks.empty()) note_whole(key, entry);  // a file without bytes
  return wanted;
}

DataCore::Message DataCore::on(const msg::ServerSocket::Received& received, const msg::PutChunkT& message) {
  if (options_.sending) options_.sending->arrived(message.bytes.size());
  const std::string& key = received.sender.name;
  const bool counts = is_sending(key, message.data);
  if (!key.empty() && !counts && !has_sent(key, message.data))
    throw Error("data " + message.data + " was not offered: " + options_.names.remedy);
  StoredContent& content = entry(message.data);
  const msg::ChunkStoredT stored{{}, message.data, message.chunk};
  if (!counts) {
    content.put(message.chunk, bytes_of(message.bytes));
    note_if_whole(entries_.at(message.data));
    return stored;
  }
  require_quota(key, message.data, message.bytes.size(), false);
  content.put(message.chunk, bytes_of(message.bytes), true);
  Sent& sent = sent_[key].at(message.data);
  if (sent.chunks[message.chunk]) return stored;
  sent.chunks[message.chunk] = true;
  sent.bytes += message.bytes.size();
  sent.to_come -= message.bytes.size();
  if (sent.to_come == 0) note_whole(key, entries_.at(message.data));
  return stored;
}

void DataCore::note_whole(const std::string& key, Entry& entry) {
  note_if_whole(entry);
  store_.note_sender(entry.content->manifest().id(), key);
}

// Throws Error if the key would have more in the store than one key may; `with_reserved`: together with what
// is still to come. Before that, it removes those of the key's data that no run needs.
void DataCore::require_quota(const std::string& key, const std::string& address, uint64_t bytes,
                             bool with_reserved) {
  if (key.empty()) return;
  auto& of_key = sent_[key];
  const uint64_t most = options_.key_bytes > 0 ? options_.key_bytes : options_.store_bytes / 2;
  const auto all = [&] {
    uint64_t sum = bytes + (with_reserved ? reserved_by(key) : 0);
    for (const auto& [data, sent] : of_key) sum += sent.bytes;
    return sum;
  };
  constexpr size_t kMostCounted = 8192;  // files; the store has fewer, the others are gone
  uint64_t now = all();
  if (now <= most && of_key.size() <= kMostCounted) return;
  std::erase_if(of_key, [&](const auto& sent) { return !store_.manifest(parse_content_id(sent.first)); });
  now = all();
  for (const std::string& other : now > most ? store_.in_order_of_removal() : std::vector<std::string>()) {
    if (now <= most) break;
    const auto open = entries_.find(other);
    const bool needed = other == address || kept_.contains(other) ||
                        (open != entries_.end() && !open->second.offered_by.empty());
    if (needed || !of_key.contains(other)) continue;
    const Sent& sent = of_key.at(other);
    if (open != entries_.end()) {
      entries_.erase(open);
      now -= with_reserved ? sent.to_come : 0;
    }
    if (!store_.remove(parse_content_id(other))) continue;
    now -= sent.bytes;
    of_key.erase(other);
  }
  if (now > most)
    throw Error(fmt::format(
        "the key '{}' would have {} bytes in the store, the most is {} ({}): wait until runs that need its data "
        "have ended",
        key, now, most, options_.names.limit_of_key));
}

// The bytes that are still to come of the files that the key has offered.
uint64_t DataCore::reserved_by(const std::string& key) const {
  uint64_t bytes = 0;
  if (const auto of_key = sent_.find(key); of_key != sent_.end())
    for (const auto& [address, sent] : of_key->second)
      if (entries_.contains(address)) bytes += sent.to_come;
  return bytes;
}

DataCore::Message DataCore::on(const msg::FetchManifestT& message) {
  return msg::ManifestOfT{{}, message.data, message_bytes(entry(message.data).manifest().encode())};
}

DataCore::Message DataCore::on(const msg::FetchChunkT& message) {
  StoredContent& content = entry(message.data);
  if (message.chunk >= content.manifest().chunks())
    throw Error(fmt::format("data {} has {} chunks, and none with number {}", message.data,
                            content.manifest().chunks(), message.chunk));
  if (options_.sending && options_.sending->take(0, now_) > kLongestQueue)
    return msg::LaterT{{}, "the link of this machine is in use"};
  if (const auto bytes = content.read(message.chunk)) {
    if (options_.sending) options_.sending->take(bytes->size(), now_);
    return msg::ChunkT{{}, message.data, message.chunk, message_bytes(*bytes)};
  }
  // If the entry was complete, it has been damaged. Closing it makes the next offer check all of it.
  if (!content.writable()) entries_.erase(message.data);
  throw Error(fmt::format("chunk {} of data {} is not in {}, or damaged: {}", message.chunk, message.data,
                          options_.names.store, options_.names.remedy));
}

// The entry, which is opened if it is in the store but not open: perhaps nobody has asked for it since the
// scheduler was started.
StoredContent& DataCore::entry(const std::string& address) {
  if (const auto found = entries_.find(address); found != entries_.end()) {
    found->second.used = now_;
    return *found->second.content;
  }
  const auto manifest = store_.manifest(parse_content_id(address));
  if (!manifest) throw Error(options_.names.store + " has no data " + address + ": " + options_.names.remedy);
  return *opened(address, *manifest).content;
}

// Opens the entry if it is not open. Checks no chunk.
DataCore::Entry& DataCore::opened(const std::string& address, const Manifest& manifest,
                                  const std::string& key) {
  auto found = entries_.find(address);
  if (found == entries_.end()) {
    require_place(key);
    auto content = store_.open_unverified(manifest);
    if (!content) throw Busy(address, options_.names);
    found = entries_.insert_or_assign(address, Entry{.content = std::move(content), .key = key}).first;
  }
  found->second.used = now_;
  return found->second;
}

// An entry with unchecked chunks; if there are several, one that somebody waits for.
DataCore::Entries::iterator DataCore::next_to_verify() {
  auto next = entries_.end();
  for (auto open = entries_.begin(); open != entries_.end(); ++open) {
    if (open->second.content->verified()) continue;
    if (!open->second.offered_by.empty()) return open;
    next = open;
  }
  return next;
}

DataCore::Replies DataCore::work() {
  const auto open = next_to_verify();
  if (open == entries_.end()) return {};
  auto& [address, entry] = *open;
  Replies replies;
  try {
    entry.content->verify_next();
    if (!entry.content->verified()) return {};
    request_missing(address, entry, replies);
  } catch (const std::exception& error) {  // an error of the disk
    for (const std::string& peer : entry.offered_by) replies.push_back({peer, refusal(error)});
    entries_.erase(open);
  }
  return replies;
}

// Makes a place for one more open file. Throws Error if no more may be open, or no more of this key.
void DataCore::require_place(const std::string& key) {
  close_unused();
  open_what_runs_need();  // before anything is removed to make room
  if (entries_.size() >= options_.most_open) close_longest_unused();
  if (entries_.size() >= options_.most_open)
    throw Error(fmt::format("{} files are open in {}, the most that may be: try again in a few minutes",
                            options_.most_open, options_.names.store));
  if (key.empty()) return;
  const auto of_key = std::ranges::count_if(entries_, [&](const auto& open) {
    return open.second.key == key || is_sending(key, open.first);  // others may have opened it
  });
  if (static_cast<size_t>(of_key) >= options_.most_open_of_key)
    throw Error(
        fmt::format("the key '{}' has {} files open in {}, the most that one may: try again in a few minutes",
                    key, options_.most_open_of_key, options_.names.store));
}

// Whether the key has offered the file, and has not sent all of it.
bool DataCore::is_sending(const std::string& key, const std::string& address) const {
  const auto of_key = sent_.find(key);
  if (of_key == sent_.end()) return false;
  const auto sent = of_key->second.find(address);
  return sent != of_key->second.end() && sent->second.to_come > 0;
}

std::map<std::string, size_t> DataCore::open_of_keys() const {
  std::map<std::string, size_t> open_of_keys;
  for (const auto& [address, entry] : entries_) ++open_of_keys[entry.key];
  return open_of_keys;
}

// A quarter of what may be open is left to what is sent and fetched.
bool DataCore::is_crowded(const std::string& key, size_t open_of_key) const {
  const auto is_most = [](size_t open, size_t limit) { return open >= limit - limit / 4; };
  return is_most(entries_.size(), options_.most_open) ||
         (!key.empty() && is_most(open_of_key, options_.most_open_of_key));
}

// Opens the data that runs need, because no process removes open entries from the store. Runs may need more
// files than can be looked for between two messages, and those that are not there are looked for again and
// again. So each call goes on where the last one ended.
void DataCore::open_what_runs_need() {
  constexpr size_t kMostLooks = 256;
  std::map<std::string, size_t> open = open_of_keys();
  auto next = kept_.lower_bound(next_to_look_for_);
  for (size_t looks = std::min(kMostLooks, kept_.size()); looks > 0; --looks, ++next) {
    if (next == kept_.end()) next = kept_.begin();
    const auto& [address, key] = *next;
    if (entries_.contains(address) || is_crowded(key, open[key])) continue;
    try {
      const auto manifest = store_.manifest(parse_content_id(address));
      auto content = manifest ? store_.open_unverified(*manifest) : nullptr;
      if (!content) continue;
      entries_[address] = {.content = std::move(content), .used = now_, .key = key};
      ++open[key];
    } catch (const std::exception& error) {  // the run that needs it will be told; the others are opened
      if (refusals_.next()) log_for_owner("data {} of a run cannot be opened: {}", address, error.what());
    }
  }
  next_to_look_for_ = next == kept_.end() ? "" : next->first;
}

// Closes the entry that was unused longest, of those that are only read. It is opened again when somebody
// asks for it.
void DataCore::close_longest_unused() {
  auto longest = entries_.end();
  for (auto open = entries_.begin(); open != entries_.end(); ++open)
    if (!open->second.offered && !kept_.contains(open->first) &&
        (longest == entries_.end() || open->second.used < longest->second.used))
      longest = open;
  if (longest != entries_.end()) entries_.erase(longest);
}

void DataCore::close_unused() {
  std::erase_if(entries_, [&](const auto& open) {
    const Entry& entry = open.second;  // an entry that somebody waits for is in use
    return !kept_.contains(open.first) && entry.offered_by.empty() &&
           ((entry.of_snapshot && entry.content->complete()) || now_ - entry.used > options_.close_seconds);
  });
  std::map<std::string, size_t> of_keys = open_of_keys();
  for (auto open = entries_.begin(); open != entries_.end();) {
    const Entry& entry = open->second;
    const bool is_idle = entry.of_snapshot && entry.content->complete() && entry.offered_by.empty();
    if (is_idle && is_crowded(entry.key, of_keys[entry.key])) {
      --of_keys[entry.key];
      open = entries_.erase(open);
    } else {
      ++open;
    }
  }
}

}  // namespace modelet::comm
