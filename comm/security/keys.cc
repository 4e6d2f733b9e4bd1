#include "comm/security/keys.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/descriptor.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "base/text/printable.h"
#include "base/text/toml.h"

namespace modelet::comm {
namespace {

constexpr size_t kZ85Size = 41;                 // a key in Z85, with the final 0
constexpr size_t kKeyFileBytes = 4096;          // a key file has 200
constexpr size_t kListBytes = size_t{4} << 20;  // some 40,000 entries
constexpr size_t kNameBytes = 64;               // of a key in a list
constexpr size_t kFingerprintDigits = 16;
constexpr mode_t kOthers = 0077;  // permission bits of group and others

std::string from_z85(const char* z85) {
  std::string bytes(kKeyBytes, '\0');
  MODELET_CHECK(zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), z85) != nullptr);
  return to_hex(bytes);
}

std::string public_key_of(const std::string& secret_key) {
  const std::string secret = to_bytes(secret_key);
  std::array<char, kZ85Size> secret_z85{}, public_z85{};
  zmq_z85_encode(secret_z85.data(), reinterpret_cast<const uint8_t*>(secret.data()), secret.size());
  if (zmq_curve_public(public_z85.data(), secret_z85.data()) != 0)
    throw Error("this libzmq has no CURVE: install Debian's libzmq5, which has");
  return from_z85(public_z85.data());
}

// A complete temporary file beside `path`, which only its owner may read (everybody may read those of
// AtomicFile). It is removed with this object.
class PrivateFile {
 public:
  PrivateFile(const std::filesystem::path& path, std::string_view text) : name_(path.string() + ".XXXXXX") {
    const int fd = ::mkostemp(name_.data(), O_CLOEXEC);  // mode 0600
    if (fd < 0) throw Error(errno_text(path.string()));
    const bool written =
        ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
    const std::string failure = errno_text(path.string());
    ::close(fd);
    if (written) return;
    ::unlink(name_.c_str());
    throw Error(failure + " (while writing)");
  }
  PrivateFile(const PrivateFile&) = delete;
  PrivateFile& operator=(const PrivateFile&) = delete;
  ~PrivateFile() { ::unlink(name_.c_str()); }

  const char* name() const { return name_.c_str(); }

 private:
  std::string name_;
};

std::string key_of(const toml::table& table, const char* name, const std::string& path) {
  const auto text = table[name].value<std::string>();
  if (!text) throw UsageError(fmt::format("{}: has no '{}': not a key file of 'modelet keygen'", path, name));
  return parse_key(*text, fmt::format("{}: '{}'", path, name));
}

// A text that changes whenever the file does.
std::string stamp_of(const std::filesystem::path& path) {
  try {
    return file_identity(path);
  } catch (const Error& error) {
    return error.what();
  }
}

// Infinite if nobody knows. A change in the future, by another machine's clock, is an old one.
double seconds_since_change(const std::filesystem::path& path) {
  std::error_code error;
  const auto changed = std::filesystem::last_write_time(path, error);
  const double seconds = Seconds(std::filesystem::file_time_type::clock::now() - changed).count();
  return error || seconds < 0 ? std::numeric_limits<double>::infinity() : seconds;
}

Role role_named(const std::string& word, const std::string& place) {
  if (word == "agent") return Role::kAgent;
  if (word == "user") return Role::kUser;
  if (word == "admin") return Role::kAdmin;
  throw UsageError(
      fmt::format("{}: '{}' is not a role; a line is 'agent KEY NAME', 'user KEY NAME' or 'admin KEY NAME'",
                  place, word));
}

struct ParsedList {
  std::map<std::string, Identity> entries;
  std::set<std::string> names;
  std::vector<std::string> complaints;  // about lines that do not count
};

// Throws UsageError if the line is wrong. Nothing of it counts then.
void add_line(const std::string& line, const std::string& place, ParsedList& list) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string role, key, name, rest;
  if (!(words >> role)) return;
  const Role its_role = role_named(role, place);
  if (!(words >> key >> name) || words >> rest)
    throw UsageError(fmt::format("{}: a line is '{} KEY NAME', with a name of one word", place, role));
  if (name.size() > kNameBytes || printable(name) != name)
    throw UsageError(fmt::format("{}: the name '{}': at most {} bytes of printable text, this has {}", place,
                                 printable(name, kNameBytes), kNameBytes, name.size()));
  const std::string public_key = parse_key(key, place);
  if (list.names.contains(name))
    throw UsageError(fmt::format("{}: the name '{}' is given twice", place, name));
  if (list.entries.contains(public_key))
    throw UsageError(fmt::format("{}: the key {} is listed twice", place, key));
  list.names.insert(name);
  list.entries[public_key] = {its_role, name, public_key};
}

ParsedList parse_allow_list(const std::string& text, const std::string& path) {
  ParsedList list;
  std::istringstream lines(text);
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) try {
      add_line(line, fmt::format("{}:{}", path, number), list);
    } catch (const UsageError& error) {
      list.complaints.push_back(error.what());
    }
  return list;
}

bool is_own_group(gid_t group) {
  if (group == ::getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  return count > 0 && std::find(groups.begin(), groups.begin() + count, group) != groups.begin() + count;
}

// Whether only this process's user, root and groups of this process can read the file, and no group can change it.
bool is_closed_to_others(const struct stat& info) {
  if ((info.st_mode & kOthers) == 0) return true;
  const bool is_for_group_to_read = (info.st_mode & kOthers) == S_IRGRP;
  const bool is_trusted = info.st_uid == 0 || info.st_uid == ::geteuid();
  return is_for_group_to_read && is_trusted && is_own_group(info.st_gid);
}

}  // namespace

std::string to_hex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}

std::string to_bytes(std::string_view hex) {
  MODELET_CHECK(hex.size() == 2 * kKeyBytes, "keys are checked by parse_key()");
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

KeyPair make_key_pair() {
  std::array<char, kZ85Size> public_z85{}, secret_z85{};
  if (zmq_curve_keypair(public_z85.data(), secret_z85.data()) != 0)
    throw Error("this libzmq has no CURVE: install Debian's libzmq5, which has");
  return {from_z85(public_z85.data()), from_z85(secret_z85.data())};
}

bool is_key(std::string_view text) {
  return text.size() == 2 * kKeyBytes &&
         text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

std::string parse_key(std::string_view text, std::string_view what) {
  if (!is_key(text))
    throw UsageError(
        fmt::format("{}: a key has {} hexadecimal digits, this has {} characters: 'modelet keygen' "
                    "prints one",
                    what, 2 * kKeyBytes, text.size()));
  std::string key(text);
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
  return key;
}

std::string fingerprint(std::string_view public_key) {
  return std::string(public_key.substr(0, kFingerprintDigits));
}

void write_key_file(const std::filesystem::path& path, const KeyPair& pair, bool replace) {
  const std::string text = fmt::format(
      "# A key pair of Modelet. The public key is for others to know; this file is not.\n"
      "public = \"{}\"\nsecret = \"{}\"\n",
      pair.public_key, pair.secret_key);
  const PrivateFile file(path, text);
  const bool done =
      replace ? std::rename(file.name(), path.c_str()) == 0 : ::link(file.name(), path.c_str()) == 0;
  if (!done && errno == EEXIST)
    throw UsageError(path.string() +
                     ": exists; its key would be lost: choose another name, or give --force to replace it");
  if (!done) throw Error(errno_text(path.string()));
}

KeyPair read_key_file(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    throw UsageError(errno_text(path.string()) + ": 'modelet keygen' makes a key file");
  if (!is_closed_to_others(info))
    throw UsageError(fmt::format(
        "{}: others may read or change this secret key: chmod 600 it (440 if it is root's, or yours, and "
        "its group is one of this program), or, if others had access to this machine, make another one",
        path.string()));
  try {
    const toml::table table = parse_toml(read_text_file(path, kKeyFileBytes));
    KeyPair pair{key_of(table, "public", path.string()), key_of(table, "secret", path.string())};
    if (public_key_of(pair.secret_key) != pair.public_key)
      throw UsageError(path.string() +
                       ": the public key does not belong to the secret one; the file is damaged");
    return pair;
  } catch (const toml::parse_error& error) {  // not passed on: its text could show the secret
    throw UsageError(
        fmt::format("{}:{}: not a key file of 'modelet keygen'", path.string(), error.source().begin.line));
  }
}

std::optional<ClientKeys> read_client_keys(const std::string& key_file, const std::string& scheduler_key) {
  if (key_file.empty() && scheduler_key.empty()) return std::nullopt;
  if (key_file.empty())
    throw UsageError("--scheduler-key needs --key, the file of the own key: 'modelet keygen FILE' makes one");
  if (scheduler_key.empty())
    throw UsageError(
        "--key needs --scheduler-key, the public key of the scheduler, as 'modelet keygen' printed it there");
  return ClientKeys{read_key_file(key_file), parse_key(scheduler_key, "--scheduler-key")};
}

AllowList::AllowList(std::filesystem::path path, double stable_after)
    : path_(std::move(path)), stable_after_(stable_after), stamp_(stamp_of(path_)) {
  try {
    read();
  } catch (const Error& error) {
    throw UsageError(std::string(error.what()) +
                     ": an allow-list has lines 'agent KEY NAME', 'user KEY NAME' and 'admin KEY NAME'");
  }
}

Identity AllowList::find(const std::string& public_key) {
  const std::lock_guard lock(mutex_);
  reload_if_changed();
  const auto found = entries_.find(public_key);
  return found == entries_.end() ? Identity{Role::kNobody, {}} : found->second;
}

void AllowList::reload_if_changed() {
  const std::string stamp = stamp_of(path_);
  if (stamp == stamp_) return;
  const bool is_stable = seconds_since_change(path_) >= stable_after_;
  if (is_stable) stamp_ = stamp;
  try {
    std::map<std::string, Identity> former = std::exchange(entries_, {});
    try {
      read();
    } catch (...) {
      entries_ = std::move(former);
      throw;
    }
    if (is_stable)
      log_info("{}: read again, {} keys", path_.string(), entries_.size());
    else
      entries_.merge(former);
  } catch (const Error& error) {
    if (is_stable) log_error("the previous allow-list stays in force: {}", error.what());
  }
}

void AllowList::read() {
  ParsedList list = parse_allow_list(read_text_file(path_, kListBytes), path_.string());
  entries_ = std::move(list.entries);
  const std::set<std::string> now(list.complaints.begin(), list.complaints.end());
  for (const std::string& complaint : list.complaints)
    if (!complaints_.contains(complaint)) log_error("{}: this line does not count, the others do", complaint);
  complaints_ = now;
}

void add_to_allow_list(const std::filesystem::path& path, const std::string& role,
                       const std::string& public_key, const std::string& name,
                       const std::function<void()>& then) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (file.get() < 0 || ::flock(file.get(), LOCK_EX) != 0)
    throw Error(errno_text(path.string()) + " (adding a key to this allow-list)");
  if (name.find_first_of("# \t\r\n") != name.npos)  // else it could be two lines
    throw UsageError(
        fmt::format("{}: the name '{}' must be one word", path.string(), printable(name, kNameBytes)));
  const std::string former = read_text_file(path, kListBytes);
  const std::string line = fmt::format("{} {} {}", role, public_key, name);
  ParsedList list = parse_allow_list(former, path.string());
  const size_t keys = list.entries.size();
  add_line(line, path.string(), list);
  if (list.entries.size() == keys || former.size() + line.size() > kListBytes)
    throw UsageError(fmt::format("{}: '{}' cannot be added to this list", path.string(), printable(line)));
  const std::string text = (former.empty() || former.ends_with('\n') ? "" : "\n") + line + "\n";
  try {
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(file.get()) != 0)
      throw Error(errno_text(path.string()) + " (adding a key to this allow-list)");
    if (then) then();
  } catch (...) {
    if (::ftruncate(file.get(), static_cast<off_t>(former.size())) != 0)
      throw Error(errno_text(path.string()));
    throw;
  }
}

}  // namespace modelet::comm
