// Keys decide who may talk to whom. Every program of a pool that other machines can reach has a key pair
// (CURVE, Curve25519, docs/pool.md). The scheduler has a list of the keys that it admits.
//
// In code, files and messages a key is written as 64 hexadecimal digits, in lower case. ZeroMQ's own
// notation, Z85, has characters that shells and option parsers misread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace modelet::comm {

struct KeyPair {
  std::string public_key, secret_key;
};

// The key pair with which a client or agent proves its identity, and the key that it expects the scheduler
// to have.
struct ClientKeys {
  KeyPair own;
  std::string scheduler;  // public key
};

inline constexpr size_t kKeyBytes = 32;

std::string to_hex(std::string_view bytes);
std::string to_bytes(std::string_view hex);  // of a key

// A new pair, from the system's random numbers.
KeyPair make_key_pair();

bool is_key(std::string_view text);  // in lower or upper case

// Parses a key, and returns it in lower case. Throws UsageError, which begins with `what`, if `text` is no
// key.
std::string parse_key(std::string_view text, std::string_view what);

// The beginning of a public key, by which people compare keys.
std::string fingerprint(std::string_view public_key);

// Writes a key file that only its owner may read. Throws UsageError if the file exists and `replace` is
// false.
void write_key_file(const std::filesystem::path& path, const KeyPair& pair, bool replace);
// Throws UsageError if others may read or change the file, or if it is not a key file. A group of this process may read
// it if it belongs to root or to this process's user: this is how secrets of containers and of units come.
KeyPair read_key_file(const std::filesystem::path& path);

// Reads the keys that `--key` (a file) and `--scheduler-key` (the scheduler's public key) name. Both must
// be given, or neither ("" for none). Throws like read_key_file() and parse_key().
std::optional<ClientKeys> read_client_keys(const std::string& key_file, const std::string& scheduler_key);

enum class Role {
  kAnybody,  // the pool has no keys
  kNobody,   // the key is not in the list, or no longer: a stranger
  kAgent,
  kUser,
  kAdmin  // a user who may watch and stop everybody's runs
};

// The sender of a message.
struct Identity {
  Role role = Role::kAnybody;
  std::string name;      // the name of the key in the list; empty without keys
  std::string key = {};  // public key; empty without keys
};

// The list of those who may talk to a scheduler. Its lines are "agent KEY NAME", "user KEY NAME" or "admin
// KEY NAME", with comments after '#'. It is read again when the file has changed. A line that is wrong, or that
// repeats a key or a name of an earlier one, is logged and does not count; the others do. If the file has become
// unreadable, that is logged, and the previous list stays in force. A file that has changed within
// the last `stable_after` seconds may still be being written: its keys count, and so do those of the
// previous list. Thread-safe.
class AllowList {
 public:
  // Throws UsageError if the file cannot be read.
  explicit AllowList(std::filesystem::path path, double stable_after = 1);

  Identity find(const std::string& public_key);
  const std::filesystem::path& path() const { return path_; }

 private:
  void reload_if_changed();
  void read();

  const std::filesystem::path path_;
  const double stable_after_;
  std::mutex mutex_;
  std::string stamp_;  // identifies the version of the file that was read last, and that was settled
  std::map<std::string, Identity> entries_;
  std::set<std::string> complaints_;  // that were logged
};

// Adds a line to an allow-list, which is made if there is none. It is on the disk when this returns. Throws UsageError,
// and changes nothing, if the list has the key or the name already or the line would be wrong; Error if it cannot be
// written. `then` is called while other programs wait for the list; if it throws, the list becomes what it was.
void add_to_allow_list(const std::filesystem::path& path, const std::string& role,
                       const std::string& public_key, const std::string& name,
                       const std::function<void()>& then = {});

}  // namespace modelet::comm
