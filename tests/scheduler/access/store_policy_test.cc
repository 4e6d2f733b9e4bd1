// Who may fetch what from the scheduler's store.
#include "scheduler/access/store_policy.h"

#include <gmock/gmock.h>

namespace modelet::scheduler {
namespace {

using comm::Identity;
using comm::Role;
using comm::control::FetchChunkT;
using comm::control::FetchManifestT;

TEST(StorePolicyTest, AgentsFetchOnlyWhatTheirRunNames) {
  StorePolicy policy;
  policy.set_files_of_agents({{"a", "farm"}, {"a", "office"}, {"b", "office"}});
  const auto is_early = [&](const Identity& sender, const std::string& address) {
    const bool of_chunk = policy.is_early(sender, FetchChunkT{{}, address, 0});
    EXPECT_EQ(policy.is_early(sender, FetchManifestT{{}, address}), of_chunk);
    return of_chunk;
  };
  const Identity farm{Role::kAgent, "farm"}, office{Role::kAgent, "office"}, lab{Role::kAgent, "lab"};
  EXPECT_FALSE(is_early(farm, "a"));
  EXPECT_TRUE(is_early(farm, "b")) << "it knows the address, but no run of its own names the file";
  EXPECT_TRUE(is_early(farm, "nothing"));
  EXPECT_FALSE(is_early(office, "b"));
  EXPECT_TRUE(is_early(lab, "a"));
  EXPECT_FALSE(is_early({}, "a")) << "a pool without keys";
  EXPECT_FALSE(policy.is_early(farm, comm::control::OfferT{}));
  policy.set_files_of_agents({});
  EXPECT_TRUE(is_early(farm, "a")) << "its run is over";
}

TEST(StorePolicyTest, UsersFetchOnlyTheResultsOfTheirRuns) {
  StorePolicy policy;
  policy.set_results({{"a", "alice"}});
  const auto may = [&](Role role, const std::string& name) {
    return policy.why_not({role, name}, FetchChunkT{{}, "a", 0}).empty();
  };
  EXPECT_TRUE(may(Role::kUser, "alice"));
  EXPECT_TRUE(may(Role::kAdmin, "root"));
  EXPECT_FALSE(may(Role::kUser, "bob"));
}

// Whoever is told of a result may ask for it before the policy knows whose it is.
TEST(StorePolicyTest, UsersAreEarlyOnlyWhileThePolicyLags) {
  StorePolicy policy;
  policy.set_results({{"old", "alice"}});
  const auto is_early = [&](Role role, const std::string& name, const std::string& address) {
    const bool of_chunk = policy.is_early({role, name}, FetchChunkT{{}, address, 0});
    EXPECT_EQ(policy.is_early({role, name}, FetchManifestT{{}, address}), of_chunk);
    return of_chunk;
  };
  EXPECT_FALSE(is_early(Role::kUser, "alice", "new"));
  policy.set_lags(true);
  EXPECT_FALSE(is_early(Role::kUser, "alice", "old"));
  EXPECT_TRUE(is_early(Role::kUser, "alice", "new"));
  EXPECT_TRUE(is_early(Role::kAdmin, "root", "new"));
  EXPECT_FALSE(is_early(Role::kAnybody, "", "new")) << "a pool without keys";
  EXPECT_FALSE(policy.is_early({Role::kUser, "alice"}, comm::control::OfferT{}));
  policy.set_results({{"old", "alice"}, {"new", "alice"}});
  policy.set_lags(false);
  EXPECT_FALSE(is_early(Role::kUser, "alice", "new"));
  EXPECT_FALSE(is_early(Role::kUser, "bob", "new"));
  EXPECT_NE(policy.why_not({Role::kUser, "bob"}, FetchChunkT{{}, "new", 0}), "")
      << "refused, not told to wait";
}

}  // namespace
}  // namespace modelet::scheduler
