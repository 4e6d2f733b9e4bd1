#include "comm/security/invitation.h"

#include <sodium.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <cctype>

#include "base/error.h"
#include "comm/security/keys.h"

namespace modelet::comm {
namespace {

constexpr std::string_view kFamily = "modelet", kPrefix = "modelet1-";
constexpr size_t kChecksumBytes = 4;
constexpr size_t kMostEndpointBytes = 256;
constexpr size_t kMostWordBytes = 512;
constexpr int kVariant = sodium_base64_VARIANT_URLSAFE_NO_PADDING;

template <size_t kBytes>
std::string blake2b(std::string_view text) {
  static_assert(kBytes >= crypto_generichash_BYTES_MIN);
  MODELET_CHECK(sodium_init() >= 0, "libsodium does not start");
  std::array<unsigned char, kBytes> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
  return {reinterpret_cast<const char*>(hash.data()), hash.size()};
}

std::string checksum_of(std::string_view bytes) { return blake2b<32>(bytes).substr(0, kChecksumBytes); }

std::string to_base64(std::string_view bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  text.pop_back();  // the final 0
  return text;
}

// Nothing if it is not base64.
std::string from_base64(std::string_view text) {
  std::string bytes(text.size(), '\0');
  size_t size = 0;
  const char* end = nullptr;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(), text.size(),
                        nullptr, &size, &end, kVariant) != 0 ||
      end != text.data() + text.size())
    return "";
  bytes.resize(size);
  return bytes;
}

}  // namespace

std::string make_secret() {
  MODELET_CHECK(sodium_init() >= 0, "libsodium does not start");
  std::string secret(kSecretBytes, '\0');
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

std::string hash_of_secret(std::string_view secret) { return to_hex(blake2b<32>(secret)); }

std::string to_word(const Invitation& invitation) {
  MODELET_CHECK(invitation.secret.size() == kSecretBytes, "a secret is one of make_secret()");
  if (invitation.endpoint.size() > kMostEndpointBytes)
    throw UsageError(fmt::format("the address of the scheduler has {} bytes, an invitation takes {}",
                                 invitation.endpoint.size(), kMostEndpointBytes));
  std::string bytes = to_bytes(invitation.scheduler_key) + invitation.secret + invitation.endpoint;
  bytes += checksum_of(bytes);
  return std::string(kPrefix) + to_base64(bytes);
}

Invitation parse_invitation(std::string_view word) {
  if (!word.starts_with(kFamily) || word.size() > kMostWordBytes)
    throw UsageError(fmt::format("this is no invitation: 'modelet-scheduler invite' prints one, which begins with {}",
                                 kPrefix));
  if (!word.starts_with(kPrefix))
    throw UsageError("this invitation is of another release: use the release of the scheduler");
  const std::string bytes = from_base64(word.substr(kPrefix.size()));
  constexpr size_t kAround = kKeyBytes + kSecretBytes + kChecksumBytes;
  const std::string body = bytes.size() > kAround ? bytes.substr(0, bytes.size() - kChecksumBytes) : "";
  if (body.empty() || checksum_of(body) != bytes.substr(body.size()))
    throw UsageError("this invitation is cut off or misspelt: copy all of what 'modelet-scheduler invite' printed");
  return {.endpoint = body.substr(kKeyBytes + kSecretBytes),
          .scheduler_key = to_hex(std::string_view(body).substr(0, kKeyBytes)),
          .secret = body.substr(kKeyBytes, kSecretBytes)};
}

}  // namespace modelet::comm
