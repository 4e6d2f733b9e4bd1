// Invitations: the words that let machines into the pool (comm/security/invitation.h), on the scheduler's side. Each is a
// file in a folder of the scheduler's state, named by the hash of its secret. So whoever reads the folder cannot enter the
// pool, and another process can make an invitation while the scheduler works. A file is changed as a whole, and is on the
// disk when a call returns: no use is counted twice, or forgotten in a crash.
//
// One process takes (the scheduler), any may make. One thread each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace modelet::scheduler {

class Invitations {
 public:
  static constexpr uint32_t kMostUses = 4096;
  static constexpr double kMostHours = 24.0 * 366;
  static constexpr size_t kMost = 1024;  // kept in the folder

  // Seconds since 1970.
  using Now = std::function<int64_t()>;
  // The folder is made when it is needed.
  explicit Invitations(std::filesystem::path folder, Now now = {});

  // Returns the secret of a new invitation. Throws Error if it cannot be written or there are too many.
  std::string make(double hours, uint32_t uses);
  // Takes one use of the invitation with this secret. Returns why it cannot be used, or "" if it was. Throws Error if the
  // folder cannot be read or written; then nothing was taken.
  std::string take(const std::string& secret);

 private:
  std::filesystem::path file_of(const std::string& secret) const;
  void remove_old() const;

  const std::filesystem::path folder_;
  const Now now_;
};

}  // namespace modelet::scheduler
