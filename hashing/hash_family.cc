#include "hashing/hash_family.h"

#include "base/error.h"

namespace modelet::hashing {

// Each defined in the file of its family.
std::unique_ptr<HashFamily> make_dwta(const HashOptions& options);
std::unique_ptr<HashFamily> make_simhash(const HashOptions& options);
std::unique_ptr<HashFamily> make_minhash(const HashOptions& options);

std::unique_ptr<HashFamily> make_hash_family(const HashOptions& options) {
  MODELET_CHECK(options.dim >= 1);
  MODELET_CHECK(options.tables >= 1 && options.tables <= kMaxTables);
  MODELET_CHECK(options.bits >= 1 && options.bits <= kMaxBits);
  switch (options.kind) {
    case HashFamilyKind::kDwta:
      return make_dwta(options);
    case HashFamilyKind::kSimHash:
      return make_simhash(options);
    case HashFamilyKind::kMinHash:
      return make_minhash(options);
  }
  MODELET_CHECK(false, "unknown hash family");
}

}  // namespace modelet::hashing
