#include "node_agent/snapshots/holder_links.h"

#include <gmock/gmock.h>

#include <string>

#include "base/error.h"

namespace modelet::agent {
namespace {

using comm::control::HolderT;

HolderT holder(const std::string& node, const std::string& key) {
  HolderT holder;
  holder.node = node;
  holder.endpoint = "tcp://127.0.0.1:1";
  holder.public_key = key;
  return holder;
}

TEST(HolderLinks, AWrongKeyIsAnErrorOfItsHolderOnly) {
  HolderLinks links(comm::make_key_pair(), {});
  links.name({holder("a", std::string(63, 'a') + "x"), holder("b", comm::make_key_pair().public_key)}, {});
  for (int again = 0; again < 2; ++again) EXPECT_THROW(links.to("a"), Error);
  EXPECT_NO_THROW(links.to("b"));
  EXPECT_TRUE(links.knows("a"));
}

// A scheduler's message, or a holder that names no key, cannot turn encryption off.
TEST(HolderLinks, AHolderWithoutAKeyIsRefusedByAnAgentThatHasOne) {
  HolderLinks links(comm::make_key_pair(), {});
  links.name({holder("a", "")}, {});
  EXPECT_THROW(links.to("a"), Error);
}

TEST(HolderLinks, AHolderWithAnotherKeyIsAnotherHolder) {
  HolderLinks links(comm::make_key_pair(), {});
  links.name({holder("a", comm::make_key_pair().public_key)}, {});
  EXPECT_NO_THROW(links.to("a"));
  links.name({holder("a", "no key")}, {});
  EXPECT_THROW(links.to("a"), Error) << "the link to the former one";
}

TEST(HolderLinks, KnowsOnlyWhomItWasToldOf) {
  HolderLinks links({}, {});
  links.name({holder("a", "")}, comm::control::SchedulerAddress("tcp://127.0.0.1:2"));
  EXPECT_NO_THROW(links.to("a"));
  EXPECT_NO_THROW(links.to("")) << "the scheduler's store";
  EXPECT_THROW(links.to("b"), Error);
  links.name({holder("b", "")}, {});
  EXPECT_THROW(links.to("a"), Error);
  EXPECT_THROW(links.to(""), Error);
  EXPECT_NO_THROW(links.to("b"));
}

}  // namespace
}  // namespace modelet::agent
