// The word that lets machines into a pool.
#include "comm/security/invitation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/security/keys.h"
#include "tests/error_of.h"

namespace modelet::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Invitation an_invitation(const std::string& endpoint = "tcp://192.168.1.5:5570") {
  return {.endpoint = endpoint, .scheduler_key = make_key_pair().public_key, .secret = make_secret()};
}

TEST(Invitation, AWordSaysWhereAndWhoTheSchedulerIs) {
  for (const char* endpoint : {"tcp://192.168.1.5:5570", "tcp://[fd00::5]:1", "tcp://scheduler.example.org:65535"}) {
    const Invitation sent = an_invitation(endpoint);
    const std::string word = to_word(sent);
    EXPECT_THAT(word, StartsWith("modelet1-"));
    EXPECT_EQ(word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), word.npos)
        << "a word that shells and chats leave alone: " << word;
    const Invitation read = parse_invitation(word);
    EXPECT_EQ(read.endpoint, sent.endpoint);
    EXPECT_EQ(read.scheduler_key, sent.scheduler_key);
    EXPECT_EQ(read.secret, sent.secret);
  }
}

TEST(Invitation, AWordThatIsCutOffOrMisspeltIsRecognised) {
  const std::string word = to_word(an_invitation());
  for (size_t length = sizeof "modelet1-" - 1; length < word.size(); ++length)
    EXPECT_THAT(test::error_of([&] { parse_invitation(word.substr(0, length)); }), HasSubstr("cut off"));
  for (size_t place = sizeof "modelet1-" - 1; place < word.size(); ++place)
    for (const char letter : {'A', 'z', '_', ' ', '\0'}) {
      std::string other = word;
      if (other[place] == letter) continue;
      other[place] = letter;
      EXPECT_THROW(parse_invitation(other), UsageError) << other;
    }
  EXPECT_THROW(parse_invitation(word + "A"), UsageError);
  EXPECT_THAT(test::error_of([&] { parse_invitation("modelet2-" + word.substr(9)); }), HasSubstr("release"));
  for (const char* text : {"", "tcp://192.168.1.5:5570", "MODELET1-"})
    EXPECT_THAT(test::error_of([&] { parse_invitation(text); }), HasSubstr("no invitation")) << text;
  EXPECT_THROW(parse_invitation("modelet1-" + std::string(100'000, 'A')), UsageError);
}

TEST(Invitation, SecretsDifferAndTheirHashSaysNothing) {
  const std::string secret = make_secret();
  EXPECT_NE(secret, make_secret());
  EXPECT_EQ(hash_of_secret(secret), hash_of_secret(secret));
  EXPECT_EQ(hash_of_secret(secret).size(), 64u);
  EXPECT_EQ(hash_of_secret(secret).find(to_hex(secret)), std::string::npos);
}

}  // namespace
}  // namespace modelet::comm
