// Invitation: one word that lets machines into a pool. It has the address of the scheduler, its public key, and a
// secret. Whoever has the word may enrol a key of his own at this scheduler, as often and as long as the scheduler says
// (scheduler/access/invitations.h). The scheduler keeps only a hash of the secret.
//
// Values and pure functions, except for make_secret(). Any thread.
#pragma once

#include <string>
#include <string_view>

namespace modelet::comm {

struct Invitation {
  std::string endpoint;       // of the scheduler
  std::string scheduler_key;  // its public key
  std::string secret;         // kSecretBytes bytes
};

inline constexpr size_t kSecretBytes = 20;

std::string make_secret();  // from the system's random numbers
// Names the invitation where the secret must not be known: 64 hexadecimal digits.
std::string hash_of_secret(std::string_view secret);

// "modelet1-" and letters, digits, '-' and '_', with a checksum.
std::string to_word(const Invitation& invitation);
// Throws UsageError that says what is wrong: no invitation, cut off or misspelt, of a newer release.
Invitation parse_invitation(std::string_view word);

}  // namespace modelet::comm
