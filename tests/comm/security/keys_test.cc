// Key files and the allow-list.
#include "comm/security/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/system/file.h"

namespace modelet::comm {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string key_refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

class KeysTest : public ::testing::Test {
 protected:
  KeysTest() : folder_(::testing::TempDir() + "modelet_keys_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~KeysTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    fs::permissions(folder_ / name, fs::perms::owner_read | fs::perms::owner_write);
    return folder_ / name;
  }

  fs::path folder_;
};

TEST_F(KeysTest, AKeyFileIsForItsOwnerAloneAndComesBack) {
  const KeyPair pair = make_key_pair();
  EXPECT_NE(pair.public_key, make_key_pair().public_key);
  const fs::path path = folder_ / "a.key";
  write_key_file(path, pair, false);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const KeyPair back = read_key_file(path);
  EXPECT_EQ(back.public_key, pair.public_key);
  EXPECT_EQ(back.secret_key, pair.secret_key);
}

TEST_F(KeysTest, AKeyFileIsReplacedOnlyOnRequest) {
  const fs::path path = folder_ / "a.key";
  const KeyPair first = make_key_pair(), second = make_key_pair();
  write_key_file(path, first, false);
  EXPECT_THAT(key_refusal([&] { write_key_file(path, second, false); }), HasSubstr("--force"));
  EXPECT_EQ(read_key_file(path).public_key, first.public_key);
  write_key_file(path, second, true);
  EXPECT_EQ(read_key_file(path).public_key, second.public_key);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "nothing is left";
}

TEST_F(KeysTest, AKeyThatOthersMayReadIsRefused) {
  const fs::path path = folder_ / "a.key";
  write_key_file(path, make_key_pair(), false);
  for (const auto perms : {fs::perms::others_read, fs::perms::group_write}) {
    fs::permissions(path, fs::perms::owner_read | perms);
    EXPECT_THAT(key_refusal([&] { read_key_file(path); }),
                AllOf(HasSubstr(path.string()), HasSubstr("chmod 600")));
  }
}

// As secrets of containers come: root's, and readable for a group of the program.
TEST_F(KeysTest, AGroupOfThisProcessMayReadAKeyOfRootOrItsOwn) {
  const fs::path path = folder_ / "a.key";
  write_key_file(path, make_key_pair(), false);
  ASSERT_EQ(::chown(path.c_str(), static_cast<uid_t>(-1), ::getegid()), 0);
  const auto is_taken = [&](mode_t mode) {
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return key_refusal([&] { read_key_file(path); }) == "accepted";
  };
  EXPECT_TRUE(is_taken(0440));
  EXPECT_TRUE(is_taken(0640));
  EXPECT_FALSE(is_taken(0660));
  EXPECT_FALSE(is_taken(0444));
  EXPECT_FALSE(is_taken(0404));
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr gid_t kStrangers = 54321;
  ASSERT_EQ(::chown(path.c_str(), 0, kStrangers), 0);
  EXPECT_FALSE(is_taken(0440));
  EXPECT_TRUE(is_taken(0400));
  ASSERT_EQ(::chown(path.c_str(), 54321, ::getegid()), 0);
  EXPECT_FALSE(is_taken(0440)) << "its owner is neither root nor this user";
}

TEST_F(KeysTest, WhatIsNoKeyFileIsRefusedWithoutShowingIt) {
  const KeyPair pair = make_key_pair();
  const std::string good = "public = \"" + pair.public_key + "\"\nsecret = \"" + pair.secret_key + "\"\n";
  EXPECT_NO_THROW(read_key_file(write("good", good)));
  std::string other = good;
  other[10] = other[10] == '0' ? '1' : '0';
  for (const std::string& text : {std::string(), good.substr(0, 78), good.substr(0, good.size() - 9), other,
                                  std::string(300, '\0'), "secret = " + pair.secret_key + "\n",
                                  std::string("secret = 7\npublic = 8\n"), std::string(10000, '#')}) {
    const fs::path path = write("bad", text);
    try {
      read_key_file(path);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(path.string()), Not(HasSubstr(pair.secret_key.substr(0, 20)))));
    }
  }
  EXPECT_THAT(key_refusal([&] { read_key_file(folder_ / "none"); }), HasSubstr("modelet keygen"));
}

TEST_F(KeysTest, ClientKeysAreBothOrNone) {
  const KeyPair pair = make_key_pair();
  const std::string file = (folder_ / "a.key").string();
  write_key_file(file, pair, false);
  EXPECT_EQ(read_client_keys("", ""), std::nullopt);
  EXPECT_THAT(key_refusal([&] { read_client_keys(file, ""); }), HasSubstr("--scheduler-key"));
  EXPECT_THAT(key_refusal([&] { read_client_keys("", pair.public_key); }), HasSubstr("modelet keygen"));
  EXPECT_THAT(key_refusal([&] { read_client_keys(file, pair.public_key.substr(1)); }), HasSubstr("64"));
  EXPECT_THAT(key_refusal([&] { read_client_keys(file, pair.public_key.substr(1) + "g"); }),
              HasSubstr("hexadecimal"));
}

TEST_F(KeysTest, TheAllowListKnowsRolesAndNames) {
  const std::string agent = make_key_pair().public_key, user = make_key_pair().public_key,
                    admin = make_key_pair().public_key;
  AllowList list(write("allowed", "# the pool\n\nagent " + agent + " office-17  # by the window\n\tuser " +
                                      user + " alice\nadmin " + admin + " root"));
  EXPECT_EQ(list.find(agent).role, Role::kAgent);
  EXPECT_EQ(list.find(agent).name, "office-17");
  EXPECT_EQ(list.find(user).role, Role::kUser);
  EXPECT_EQ(list.find(admin).role, Role::kAdmin);
  EXPECT_EQ(list.find(make_key_pair().public_key).role, Role::kNobody);
  EXPECT_EQ(list.find("").role, Role::kNobody);
}

// One mistake of an editor must not shut everybody out.
TEST_F(KeysTest, AWrongLineOfTheAllowListIsNamedAndTheOthersCount) {
  const std::string key = make_key_pair().public_key, other = make_key_pair().public_key,
                    last = make_key_pair().public_key;
  for (const std::string& line :
       {"boss " + other + " b", "agent " + other, "agent " + other + " two words",
        "agent " + other.substr(1) + " b", "user " + key + " b", "user " + other + " a", std::string("agent"),
        "user " + other + " " + std::string(65, 'n'), "user " + other + " \x1b[2J"}) {
    const fs::path path =
        write("allowed", "agent " + key + " a\n# comment\n" + line + "\nuser " + last + " z\n");
    std::ostringstream log;
    const auto former = spdlog::default_logger();
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
    AllowList list(path);
    spdlog::set_default_logger(former);
    EXPECT_THAT(log.str(), HasSubstr(path.string() + ":3")) << line;
    EXPECT_EQ(list.find(key).role, Role::kAgent) << line;
    EXPECT_EQ(list.find(key).name, "a") << line;
    EXPECT_EQ(list.find(other).role, Role::kNobody) << line;
    EXPECT_EQ(list.find(last).role, Role::kUser) << line;
  }
  AllowList longest(write("allowed", "user " + other + " " + std::string(64, 'n')));
  EXPECT_EQ(longest.find(other).name.size(), 64);
  EXPECT_THAT(key_refusal([&] { AllowList list(folder_ / "none"); }), HasSubstr("agent KEY NAME"));
}

TEST_F(KeysTest, ALineIsAddedToAListOrNothingChanges) {
  const std::string key = make_key_pair().public_key, other = make_key_pair().public_key;
  const fs::path path = write("allowed", "agent " + key + " a\n# no line end");
  add_to_allow_list(path, "agent", other, "b");
  AllowList list(path);
  EXPECT_EQ(list.find(key).name, "a");
  EXPECT_EQ(list.find(other).name, "b");
  const std::string before = read_text_file(path);
  const std::string third = make_key_pair().public_key;
  EXPECT_THAT(key_refusal([&] { add_to_allow_list(path, "agent", other, "c"); }), HasSubstr("listed twice"));
  EXPECT_THAT(key_refusal([&] { add_to_allow_list(path, "agent", third, "a"); }), HasSubstr("given twice"));
  EXPECT_THAT(key_refusal([&] { add_to_allow_list(path, "agent", third, "c # d"); }), HasSubstr("c"));
  EXPECT_THAT(key_refusal([&] { add_to_allow_list(path, "agent", third, "c\nadmin " + third + " x"); }),
              HasSubstr("c"));
  EXPECT_THROW(add_to_allow_list(path, "agent", third, "c", [] { throw Error("no room"); }), Error);
  EXPECT_EQ(read_text_file(path), before);
}

TEST_F(KeysTest, TheAllowListIsReadAgainWhenItChangesAndAMissingOneDoesNotCount) {
  const std::string first = make_key_pair().public_key, second = make_key_pair().public_key;
  const fs::path path = write("allowed", "agent " + first + " a\n");
  AllowList list(path, 0);
  write("allowed", "agent " + second + " longer-name\n");
  EXPECT_EQ(list.find(first).role, Role::kNobody);
  EXPECT_EQ(list.find(second).role, Role::kAgent);
  write("allowed", "agent nonsense\n");
  EXPECT_EQ(list.find(second).role, Role::kNobody) << "its line is gone";
  write("allowed", "agent " + second + " longer-name\n");
  EXPECT_EQ(list.find(second).role, Role::kAgent);
  fs::remove(path);
  EXPECT_EQ(list.find(second).role, Role::kAgent);
  write("allowed", "user " + second + " b\n");
  EXPECT_EQ(list.find(second).role, Role::kUser);
}

// As by a program that keeps the times of what it copies.
TEST_F(KeysTest, AnAllowListOfTheSameSizeAndTimeIsReadAgain) {
  const std::string first = make_key_pair().public_key, second = make_key_pair().public_key;
  const fs::path path = write("allowed", "agent " + first + " a\n");
  const auto time = fs::last_write_time(path);
  AllowList list(path, 0);
  write("allowed", "agent " + second + " a\n");
  fs::last_write_time(path, time);
  EXPECT_EQ(list.find(first).role, Role::kNobody);
  EXPECT_EQ(list.find(second).role, Role::kAgent);
}

TEST_F(KeysTest, AnAllowListThatIsBeingWrittenTakesNoRights) {
  const std::string first = make_key_pair().public_key, second = make_key_pair().public_key;
  const fs::path path = write("allowed", "agent " + first + " a\n");
  AllowList list(path, 3600);
  write("allowed", "");
  EXPECT_EQ(list.find(first).role, Role::kAgent);
  write("allowed", "agent " + second.substr(0, 20));
  EXPECT_EQ(list.find(first).role, Role::kAgent);
  write("allowed", "user " + second + " b\n");
  EXPECT_EQ(list.find(first).role, Role::kAgent);
  EXPECT_EQ(list.find(second).role, Role::kUser) << "a new key counts at once";
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(2));
  EXPECT_EQ(list.find(first).role, Role::kNobody);
  EXPECT_EQ(list.find(second).role, Role::kUser);
}

}  // namespace
}  // namespace modelet::comm
