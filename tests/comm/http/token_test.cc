#include "comm/http/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/error_of.h"

namespace modelet::comm::http {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kViewerSecret = "viewer-0123456789";

std::vector<Token> two_tokens() {
  return {{kViewerSecret, false, "screen"}, {"admin-0123456789a", true, "alice"}};
}

class TokenFileTest : public testing::Test {
 protected:
  std::string file(const std::string& text, bool is_private = true) const {
    const auto path = std::filesystem::path(testing::TempDir()) / "tokens";
    std::ofstream(path, std::ios::trunc) << text;
    using std::filesystem::perms;
    std::filesystem::permissions(
        path, is_private ? perms::owner_read | perms::owner_write : perms::owner_read | perms::group_read);
    return path;
  }
  std::string refusal(const std::string& text) const {
    return test::error_of([&] { read_tokens_file(file(text)); });
  }
};

TEST_F(TokenFileTest, RolesAndNames) {
  const auto tokens = read_tokens_file(file(
      "# who may look\n\nviewer viewer-0123456789 screen\n  admin admin-0123456789a alice  # on call\n"));
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[0].secret, kViewerSecret);
  EXPECT_FALSE(tokens[0].may_act);
  EXPECT_EQ(tokens[1].name, "alice");
  EXPECT_TRUE(tokens[1].may_act);
}

TEST_F(TokenFileTest, SaysWhichLineIsWrong) {
  EXPECT_THAT(refusal("viewer viewer-0123456789 a\nroot viewer-0123456789 b\n"),
              AllOf(HasSubstr(":2:"), HasSubstr("'root' is not a role"), HasSubstr("viewer TOKEN NAME")));
  EXPECT_THAT(refusal("viewer short a\n"), AllOf(HasSubstr(":1:"), HasSubstr("openssl rand")));
  EXPECT_THAT(refusal("viewer viewer-0123456789\n"), HasSubstr("name of one word"));
  EXPECT_THAT(refusal("viewer viewer-0123456789 a b\n"), HasSubstr("name of one word"));
  EXPECT_THAT(refusal("viewer viewer-0123456789 a\nviewer viewer-012345678x a\n"),
              HasSubstr("'a' is given twice"));
  EXPECT_THAT(refusal("viewer viewer-0123456789 a\nadmin viewer-0123456789 b\n"),
              AllOf(HasSubstr("the token of 'b' is another one's"), Not(HasSubstr(kViewerSecret))));
  EXPECT_THAT(refusal("# none\n"), HasSubstr("there is no token in it"));
  EXPECT_THAT(test::error_of([&] { read_tokens_file(file("viewer viewer-0123456789 a\n", false)); }),
              HasSubstr("chmod 600"));
}

TEST(Token, InTheFieldAuthorization) {
  const auto tokens = two_tokens();
  EXPECT_EQ(find_token(tokens, "Bearer " + kViewerSecret, ""), &tokens[0]);
  EXPECT_EQ(find_token(tokens, "bearer admin-0123456789a", ""), &tokens[1]);
  for (const char* wrong : {"", "Bearer ", "Bearer viewer-012345678", "Basic viewer-0123456789"})
    EXPECT_EQ(find_token(tokens, wrong, ""), nullptr) << wrong;
}

TEST(Token, InACookieThatDoesNotContainIt) {
  const auto tokens = two_tokens();
  const std::string set = cookie_of(tokens[1]);
  EXPECT_THAT(set,
              AllOf(HasSubstr("HttpOnly"), HasSubstr("SameSite=Strict"), Not(HasSubstr(tokens[1].secret))));
  const std::string cookie = set.substr(0, set.find(';'));
  EXPECT_EQ(find_token(tokens, "", cookie), &tokens[1]);
  EXPECT_EQ(find_token(tokens, "", "theme=dark; modelet-00000000=x; " + cookie + "; a=b"), &tokens[1]);
  EXPECT_NE(cookie.substr(0, cookie.find('=')), cookie_of(tokens[0]).substr(0, cookie.find('=')));
  EXPECT_EQ(find_token(tokens, "", cookie.substr(0, cookie.size() - 1)), nullptr);
  EXPECT_EQ(find_token(tokens, "", "modelet-x=" + tokens[1].secret), nullptr);
  EXPECT_EQ(find_token(tokens, "", ";;=;modelet-"), nullptr);
  // A wrong field is not made up for by a cookie.
  EXPECT_EQ(find_token(tokens, "Bearer wrong", cookie), nullptr);
}

}  // namespace
}  // namespace modelet::comm::http
