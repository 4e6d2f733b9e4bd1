// Accounts: what each key holds of the scheduler. A limit on one key leaves room for the others; a limit on
// all keys together leaves room for the process. Each run says what it holds, and is counted again whenever
// that changes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace modelet::scheduler {

struct Holding {
  uint64_t runs = 0;       // that have not ended
  uint64_t bytes = 0;      // of memory, for submissions and events
  uint64_t addresses = 0;  // of files in the store that runs which have not ended begin from
  uint64_t watches = 0;    // by connections

  friend bool operator==(const Holding&, const Holding&) = default;
};

class Accounts {
 public:
  // Something of `key` held `before`, and holds `after`.
  void change(const std::string& key, const Holding& before, const Holding& after);
  Holding of(const std::string& key) const;
  const Holding& all() const { return all_; }

 private:
  std::map<std::string, Holding> of_key_;
  Holding all_;
};

}  // namespace modelet::scheduler
