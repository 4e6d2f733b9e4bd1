#include "node_agent/owner/notice/notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "node_agent/owner/notice/notice_watcher.h"
#include "tests/comm/http/stand_in.h"
#include "tests/error_of.h"

namespace modelet::agent {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kNow = 1'505'722'800;  // 2017-09-18T08:20:00Z
constexpr auto kAwsToken = "PUT /latest/api/token ";
constexpr auto kAwsAction = "GET /latest/meta-data/spot/instance-action ";
constexpr auto kGcp = "GET /computeMetadata/v1/instance/preempted ";
constexpr auto kAzureName = "GET /metadata/instance/compute/name?";
constexpr auto kAzureEvents = "GET /metadata/scheduledevents?";

class NoticeTest : public testing::Test {
 protected:
  std::unique_ptr<NoticeSource> source(const std::string& from, double timeout_seconds = 60) const {
    return make_notice_source(
        from, {.address = cloud_.address(), .timeout_seconds = timeout_seconds, .utc = [] { return kNow; }});
  }

  test::StandIn cloud_;
};

TEST_F(NoticeTest, Aws) {
  cloud_.reply(kAwsToken, "secret-token");
  cloud_.reply(kAwsAction, "", "404 Not Found");
  const auto aws = source("aws");
  EXPECT_FALSE(aws->ask());
  EXPECT_FALSE(aws->ask());
  EXPECT_THAT(cloud_.received(), AllOf(HasSubstr("X-aws-ec2-metadata-token-ttl-seconds: 21600\r\n"),
                                       HasSubstr("X-aws-ec2-metadata-token: secret-token\r\n")));
  EXPECT_EQ(cloud_.received().find(kAwsToken), cloud_.received().rfind(kAwsToken)) << "one token for all";

  cloud_.reply(kAwsAction, R"({"action": "terminate", "time": "2017-09-18T08:22:00Z"})");
  const auto notice = aws->ask();
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->seconds, 120);
  EXPECT_THAT(notice->reason, HasSubstr("terminate"));
  cloud_.reply(kAwsAction, R"({"action": "stop", "time": "2016-09-18T08:22:00Z"})");
  EXPECT_EQ(aws->ask()->seconds, 0);
}

TEST_F(NoticeTest, AwsRenewsItsToken) {
  cloud_.reply(kAwsToken, "first");
  cloud_.reply(kAwsAction, "", "401 Unauthorized");
  const auto aws = source("aws");
  EXPECT_THAT(error_of([&] { aws->ask(); }), HasSubstr("401"));
  cloud_.reply(kAwsToken, "second");
  cloud_.reply(kAwsAction, "", "404 Not Found");
  EXPECT_FALSE(aws->ask());
  EXPECT_THAT(cloud_.received(), HasSubstr("X-aws-ec2-metadata-token: second\r\n"));
}

TEST_F(NoticeTest, Gcp) {
  cloud_.reply(kGcp, "FALSE");
  const auto gcp = source("gcp");
  EXPECT_FALSE(gcp->ask());
  EXPECT_THAT(cloud_.received(), HasSubstr("Metadata-Flavor: Google\r\n"));
  cloud_.reply(kGcp, "TRUE\n");
  const auto notice = gcp->ask();
  ASSERT_TRUE(notice);
  EXPECT_LE(notice->seconds, 30);
  cloud_.reply(kGcp, "MAYBE");
  EXPECT_THAT(error_of([&] { gcp->ask(); }), HasSubstr("MAYBE"));
}

TEST_F(NoticeTest, Azure) {
  cloud_.reply(kAzureName, "vm-1");
  cloud_.reply(kAzureEvents, R"({"DocumentIncarnation": 1, "Events": []})");
  const auto azure = source("azure");
  EXPECT_FALSE(azure->ask());
  EXPECT_THAT(cloud_.received(), HasSubstr("Metadata: true\r\n"));
  const auto events = [&](const std::string& type, const std::string& machine, const std::string& time) {
    cloud_.reply(kAzureEvents,
                 R"({"Events": [{"EventType": "Freeze", "Resources": ["vm-1"]}, {"EventType": ")" + type +
                     R"(", "Resources": ["x", ")" + machine + R"("], "NotBefore": ")" + time + "\"}]}");
  };
  events("Preempt", "vm-2", "");
  EXPECT_FALSE(azure->ask()) << "another machine";
  events("Preempt", "vm-1", "Mon, 18 Sep 2017 08:20:30 GMT");
  ASSERT_TRUE(azure->ask());
  EXPECT_EQ(azure->ask()->seconds, 30);
  events("Terminate", "vm-1", "");
  EXPECT_EQ(azure->ask()->seconds, 0) << "it has begun";
  events("Preempt", "vm-1", "soon");
  EXPECT_THAT(error_of([&] { azure->ask(); }), HasSubstr("soon"));
}

TEST_F(NoticeTest, NonsenseIsAnError) {
  cloud_.reply(kAwsToken, "token");
  cloud_.reply(kAzureName, "vm-1");
  for (const char* body : {"", "[]", "null", "\"x\"", "{\"time\": 3}", "{", "{\"Events\": 3}", "\xff\xfe"}) {
    cloud_.reply(kAwsAction, body);
    EXPECT_NE(error_of([&] { source("aws")->ask(); }), "no error") << body;
    cloud_.reply(kAzureEvents, body);
    EXPECT_NE(error_of([&] { source("azure")->ask(); }), "no error") << body;
  }
  for (const char* event : {"3", "{}", R"({"EventType": 3})", R"({"EventType": "Preempt"})",
                            R"({"EventType": "Preempt", "Resources": {"vm-1": 1}})"}) {
    cloud_.reply(kAzureEvents, std::string("{\"Events\": [") + event + "]}");
    EXPECT_FALSE(source("azure")->ask()) << event;
  }
  // A token becomes part of a header, and must not be able to end it.
  cloud_.reply(kAwsToken, "x\r\nEvil: 1");
  EXPECT_NE(error_of([&] { source("aws")->ask(); }), "no error");
}

// A command that does not end, and clouds that do not respond.
TEST_F(NoticeTest, ACheckEndsTheQuestion) {
  for (const char* line : {kGcp, kAwsToken, kAzureName}) cloud_.respond(line, "...");
  for (const std::string from : {"command:sleep 3600", "gcp", "aws", "azure"}) {
    int checks = 0;
    const NoticeOptions options{
        .address = cloud_.address(), .timeout_seconds = 3600, .utc = {}, .check = [&] {
          if (++checks == 2) throw Interrupted("enough");
        }};
    EXPECT_THROW(make_notice_source(from, options)->ask(), Interrupted) << from;
  }
}

TEST(Notice, AFile) {
  const std::string path = testing::TempDir() + "/notice";
  std::filesystem::remove(path);
  const auto file = make_notice_source("file:" + path);
  EXPECT_FALSE(file->ask());
  for (const auto& [text, seconds] :
       std::vector<std::pair<std::string, double>>{{"", 30},
                                                   {"12.5 s", 12.5},
                                                   {"soon", 30},
                                                   {"-1", 30},
                                                   {"nan", 30},
                                                   {"1e9", 3600},
                                                   {std::string(1 << 20, '0'), 0}}) {
    std::ofstream(path) << text;
    ASSERT_TRUE(file->ask());
    EXPECT_EQ(file->ask()->seconds, seconds) << text.substr(0, 20);
  }
  std::filesystem::remove(path);
}

TEST(Notice, ACommand) {
  const auto ask = [](const std::string& command, double timeout_seconds = 60) {
    return make_notice_source("command:" + command, {.address = {}, .timeout_seconds = timeout_seconds})
        ->ask();
  };
  EXPECT_FALSE(ask("exit 1"));
  EXPECT_EQ(ask("exit 0")->seconds, 30);
  EXPECT_EQ(ask("echo 17; echo more")->seconds, 17);
  EXPECT_EQ(ask("yes 5 | head -c 1000000")->seconds, 5);
  EXPECT_THAT(error_of([&] { ask("exit 3"); }), HasSubstr("exit 3"));
  EXPECT_THAT(error_of([&] { ask("kill -9 $$"); }), HasSubstr("must end with 0"));
  EXPECT_THAT(error_of([&] { ask("sleep 1000", 0.1); }), HasSubstr("in time"));
  EXPECT_THAT(error_of([&] { ask("exec >&-; sleep 1000", 0.1); }), HasSubstr("in time"));
}

TEST(Notice, OtherSourcesAreRefused) {
  for (const char* from : {"", "AWS", "file:", "command:", "oracle", "file"})
    EXPECT_THAT(error_of([&] { make_notice_source(from); }), HasSubstr("aws, gcp, azure")) << from;
  EXPECT_THAT(error_of([] { make_notice_source("aws", {.address = "127.0.0.1"}); }),
              HasSubstr("is not an address"));
}

// Fails twice when it is asked, then has news.
class Hesitant final : public NoticeSource {
 public:
  std::optional<Notice> ask() override {
    if (++asked_ <= 2) throw Error("not now");
    if (asked_ == 3) return std::nullopt;
    return Notice{10, "it goes"};
  }

 private:
  int asked_ = 0;
};

TEST(NoticeWatcher, AsksUntilItKnows) {
  std::atomic<int> told{0};
  const NoticeWatcher watcher(std::make_unique<Hesitant>(), 0.001, [&](const Notice& notice) {
    EXPECT_EQ(notice.seconds, 10);
    ++told;
  });
  while (told == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(told, 1);
}

TEST(NoticeWatcher, EndsAtOnce) {
  const NoticeWatcher watcher(std::make_unique<Hesitant>(), 1e6, [](const Notice&) {});
}

}  // namespace
}  // namespace modelet::agent
