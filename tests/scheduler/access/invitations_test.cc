// What an invitation is worth: so many uses, for so long, and no more after a crash.
#include "scheduler/access/invitations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/system/file.h"
#include "comm/security/invitation.h"

namespace modelet::scheduler {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class InvitationsTest : public ::testing::Test {
 protected:
  Invitations invitations() {
    return Invitations(folder_, [this] { return now_; });
  }
  TemporaryFolder temporary_{"invitations"};
  fs::path folder_ = temporary_.path() / "invitations";
  int64_t now_ = 1'800'000'000;
};

TEST_F(InvitationsTest, AnInvitationIsUsedUp) {
  const std::string secret = invitations().make(1, 2);
  EXPECT_EQ(invitations().take(secret), "");
  EXPECT_EQ(invitations().take(secret), "") << "by another process";
  EXPECT_THAT(invitations().take(secret), HasSubstr("used as often as it may be"));
}

TEST_F(InvitationsTest, AnInvitationExpires) {
  const std::string secret = invitations().make(0.5, 5);
  now_ += 1799;
  EXPECT_EQ(invitations().take(secret), "");
  now_ += 1;
  EXPECT_THAT(invitations().take(secret), HasSubstr("has expired at 2027-01-15T08:30:00"));
  now_ += 8 * 86400;
  invitations().make(1, 1);
  EXPECT_THAT(invitations().take(secret), HasSubstr("no such invitation")) << "it was removed";
}

TEST_F(InvitationsTest, WhatWasNeverMadeOrWasWithdrawnIsWorthNothing) {
  EXPECT_THAT(invitations().take(comm::make_secret()), HasSubstr("no such invitation"))
      << "there is no folder yet";
  const std::string secret = invitations().make(1, 2);
  for (const std::string& other :
       {comm::make_secret(), std::string(), std::string("../../etc/passwd"), secret + '\0', secret.substr(1)})
    EXPECT_THAT(invitations().take(other), HasSubstr("no such invitation"));
  fs::remove(folder_ / comm::hash_of_secret(secret));
  EXPECT_THAT(invitations().take(secret), HasSubstr("no such invitation"));
}

TEST_F(InvitationsTest, TheFolderDoesNotLetAnybodyIn) {
  const std::string secret = invitations().make(1, 2);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().string().find(secret), std::string::npos);
    EXPECT_EQ(read_text_file(entry.path()).find(secret), std::string::npos);
  }
}

TEST_F(InvitationsTest, ADamagedFileIsAnErrorThatNamesIt) {
  const std::string secret = invitations().make(1, 2);
  const fs::path file = folder_ / comm::hash_of_secret(secret);
  for (const char* text : {"", "expires = 'soon'\nuses = 1\n", "uses = 1\n", "[[["}) {
    std::ofstream(file, std::ios::trunc) << text;
    try {
      invitations().take(secret);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(file.string()));
    }
  }
  EXPECT_NO_THROW(invitations().make(1, 1)) << "the others go on";
}

TEST_F(InvitationsTest, ThereAreOnlySoMany) {
  for (size_t i = 0; i < Invitations::kMost; ++i) {
    fs::create_directories(folder_);
    std::ofstream(folder_ / std::to_string(i)) << "expires = " << now_ + 1 << "\nuses = 1\n";
  }
  EXPECT_THROW(invitations().make(1, 1), Error);
}

}  // namespace
}  // namespace modelet::scheduler
