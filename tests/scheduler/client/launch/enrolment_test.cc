#include "scheduler/client/launch/enrolment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/system/file.h"
#include "tests/error_of.h"

namespace modelet::cli {
namespace {

using testing::HasSubstr;

TEST(Enrolment, OnlyWhatASchedulerReads) {
  const TemporaryFolder temporary("enrolment");
  const std::filesystem::path& folder = temporary.path();
  const std::filesystem::path list = folder / "allowed";
  const comm::KeyPair node = enrol(folder / "node.key", false, list, "agent", "node");
  EXPECT_EQ(comm::read_key_file(folder / "node.key").secret_key, node.secret_key);
  std::ofstream(list, std::ios::app) << "# without a line end";
  const comm::KeyPair user = enrol(folder / "user.key", false, list, "admin", "user");
  comm::AllowList allowed(list);
  EXPECT_EQ(allowed.find(node.public_key).role, comm::Role::kAgent);
  EXPECT_EQ(allowed.find(user.public_key).role, comm::Role::kAdmin);
  EXPECT_EQ(allowed.find(user.public_key).name, "user");

  const std::string before = read_text_file(list);
  const auto failure = [&](const char* key, const char* role, const char* name) {
    return test::error_of([&] { enrol(folder / key, false, list, role, name); });
  };
  EXPECT_THAT(failure("new.key", "boss", "new"), HasSubstr("'boss' is not a role"));
  EXPECT_THAT(failure("new.key", "agent", "node"), HasSubstr("given twice"));
  EXPECT_THAT(failure("new.key", "agent", "two words"), HasSubstr("one word"));
  EXPECT_THAT(failure("user.key", "agent", "new"), HasSubstr("user.key"));
  EXPECT_EQ(read_text_file(list), before);
  EXPECT_FALSE(std::filesystem::exists(folder / "new.key"));
  EXPECT_THAT(test::error_of([&] { enrol(folder / "new.key", false, folder / "no" / "list", "agent", "x"); }),
              HasSubstr("list"));
}

}  // namespace
}  // namespace modelet::cli
