// Keys: who may talk to whom. Every program of a pool that other machines can reach has a key pair (CURVE,
// Curve25519, docs/pool.md); the scheduler has the list of those that it admits.
//
// A key is written as 64 hexadecimal digits, lower case, here and in files and messages: shells and option
// parsers misread some characters of ZeroMQ's own notation, Z85.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace modelet::comm {

struct KeyPair {
  std::string public_key, secret_key;
};

// The key with which a client of a scheduler, or an agent, proves its identity, and the key that it expects.
struct ClientKeys {
  KeyPair own;
  std::string scheduler;  // public key
};

inline constexpr size_t kKeyBytes = 32;

std::string to_hex(std::string_view bytes);
std::string to_bytes(std::string_view hex);  // of a key

// A new pair, from the system's random numbers.
KeyPair make_key_pair();

// `text` as a key, in lower case. UsageError that begins with `what` if it is not a key.
std::string parse_key(std::string_view text, std::string_view what);

// Writes a key file that only its owner may read. UsageError if the file exists and not `replace`.
void write_key_file(const std::filesystem::path& path, const KeyPair& pair, bool replace);
// UsageError if others may read the file, or if it is not a key file.
KeyPair read_key_file(const std::filesystem::path& path);

// Both or none: `key_file` ("" for none) and the scheduler's public key ("" for none), as given to `--key`
// and `--scheduler-key`. Throws as read_key_file and parse_key.
std::optional<ClientKeys> read_client_keys(const std::string& key_file, const std::string& scheduler_key);

enum class Role {
  kAnybody,  // the pool has no keys
  kNobody,   // a key that is not, or no longer, in the list
  kAgent,
  kUser,
  kAdmin  // a user who may watch and stop everybody's runs
};

// The sender of a message.
struct Identity {
  Role role = Role::kAnybody;
  std::string name;  // of the key in the list; empty without keys
};

// The list of those who may talk to a scheduler: lines "agent KEY NAME", "user KEY NAME" or "admin KEY NAME",
// comments after '#'. It is read again when the file has changed. If it has become unreadable or wrong, that
// is reported in the log and the previous list stays in force. Thread-safe.
class AllowList {
 public:
  // UsageError if the file cannot be read or has a wrong line.
  explicit AllowList(std::filesystem::path path);

  Identity find(const std::string& public_key);
  const std::filesystem::path& path() const { return path_; }

 private:
  void reload_if_changed();

  const std::filesystem::path path_;
  std::mutex mutex_;
  std::string stamp_;  // of the file as last read: changes with it
  std::map<std::string, Identity> entries_;
};

}  // namespace modelet::comm
