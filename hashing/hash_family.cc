#include "hashing/hash_family.h"

#include "base/error.h"
#include "base/experiment/choices.h"

namespace modelet::hashing {

// Each is defined in the file of its family.
std::unique_ptr<HashFamily> make_dwta(const HashOptions& options);
std::unique_ptr<HashFamily> make_simhash(const HashOptions& options);
std::unique_ptr<HashFamily> make_minhash(const HashOptions& options);

namespace {

using MakeFamily = std::unique_ptr<HashFamily> (*)(const HashOptions&);
constexpr ByChoice<HashFamilyKind, MakeFamily> kFamilies({
    {HashFamilyKind::kDwta, make_dwta},
    {HashFamilyKind::kSimHash, make_simhash},
    {HashFamilyKind::kMinHash, make_minhash},
});

}  // namespace

std::unique_ptr<HashFamily> make_hash_family(const HashOptions& options) {
  MODELET_CHECK(options.dim >= 1);
  MODELET_CHECK(options.tables >= 1 && options.tables <= kMaxTables);
  MODELET_CHECK(options.bits >= 1 && options.bits <= kMaxBits);
  return kFamilies[options.kind](options);
}

}  // namespace modelet::hashing
