#include "node_agent/replicas/peer_masks.h"

#include <sodium.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "comm/collectives/gather_numbers.h"

namespace modelet::agent {
namespace {

constexpr size_t kKeyWords = crypto_scalarmult_BYTES / sizeof(uint64_t);

using Words = std::array<uint64_t, 2 * kKeyWords>;  // what peers tell each other: the key of this group, the agent's key

const unsigned char* group_key(const std::vector<uint64_t>& words) {
  return reinterpret_cast<const unsigned char*>(words.data());
}
const unsigned char* agent_key(const std::vector<uint64_t>& words) {
  return reinterpret_cast<const unsigned char*>(words.data() + kKeyWords);
}

// A key that comes twice may be one owner that counts as two.
void require_known(comm::Group& peers, const std::vector<std::vector<uint64_t>>& keys, const PeerIdentity& identity) {
  if (identity.known.empty()) return;
  if (!identity.own)
    throw UsageError("the owner of this node names the agents with which it sums (private.owners), and this pool has no keys by "
                     "which they could prove who they are; nothing was sent");
  std::set<std::string> met = {identity.own->public_key};
  for (size_t peer = 0; peer < keys.size(); ++peer) {
    if (peer == static_cast<size_t>(peers.rank())) continue;
    const std::string key =
        comm::to_hex({reinterpret_cast<const char*>(agent_key(keys[peer])), crypto_scalarmult_BYTES});
    if (std::ranges::find(identity.known, key) == identity.known.end() || !met.insert(key).second)
      throw UsageError(fmt::format("{} has the key {}, which is none of those with which the owner of this node sums "
                                   "(private.owners), or comes twice; nothing was sent",
                                   peers.node_name(static_cast<int>(peer)), key));
  }
}

}  // namespace

PeerMasks::PeerMasks(comm::Group& peers, comm::Tag tag, const PeerIdentity& identity) {
  static_assert(sizeof(Key) == crypto_stream_chacha20_KEYBYTES && sizeof(Key) == crypto_scalarmult_BYTES);
  // The first call chooses libsodium's code for this CPU.
  MODELET_CHECK(sodium_init() >= 0, "libsodium does not start");
  Key secret, shared;
  Words own{};
  randombytes_buf(secret.data(), secret.size());
  crypto_scalarmult_base(reinterpret_cast<unsigned char*>(own.data()), secret.data());
  std::string agent_secret;
  if (identity.own) {
    agent_secret = comm::to_bytes(identity.own->secret_key);
    std::memcpy(own.data() + kKeyWords, comm::to_bytes(identity.own->public_key).data(), sizeof(Key));
  }
  const auto size = static_cast<size_t>(peers.size()), self = static_cast<size_t>(peers.rank());
  const auto keys = comm::all_gather_numbers(peers, tag, own, std::vector<size_t>(size, own.size()));
  require_known(peers, keys, identity);
  for (size_t peer = 0; peer < size; ++peer) {
    if (peer == self) continue;
    const auto agree = [&](const unsigned char* own_secret, const unsigned char* theirs) {
      if (crypto_scalarmult(shared.data(), own_secret, theirs) != 0)
        throw FormatError(peers.node_name(static_cast<int>(peer)) + " sent something that is no key for masks");
    };
    agree(secret.data(), group_key(keys[peer]));
    // The key depends on all public keys, in the order of ranks, as X25519 asks for.
    Peer& made = peers_.emplace_back(Peer{.key = {}, .adds = self < peer, .place = peer});
    crypto_generichash_state hash;
    crypto_generichash_init(&hash, nullptr, 0, made.key.size());
    crypto_generichash_update(&hash, shared.data(), shared.size());
    if (identity.own) {
      agree(reinterpret_cast<const unsigned char*>(agent_secret.data()), agent_key(keys[peer]));
      crypto_generichash_update(&hash, shared.data(), shared.size());
    }
    for (const size_t each : {std::min(self, peer), std::max(self, peer)})
      crypto_generichash_update(&hash, group_key(keys[each]), sizeof own);
    crypto_generichash_final(&hash, made.key.data(), made.key.size());
  }
  sodium_memzero(secret.data(), secret.size());
  sodium_memzero(agent_secret.data(), agent_secret.size());
  sodium_memzero(shared.data(), shared.size());
}

PeerMasks::~PeerMasks() {
  for (Peer& peer : peers_) sodium_memzero(peer.key.data(), peer.key.size());
}

template <class Word>
void PeerMasks::add_words(uint64_t stream, uint64_t block, std::span<Word> words, const ReplicaSet& with) const {
  constexpr size_t kBlocksAtOnce = 16;
  constexpr size_t kWordsAtOnce = kBlocksAtOnce * kBlockBytes / sizeof(Word);
  static constexpr unsigned char kZeros[kBlocksAtOnce * kBlockBytes] = {};
  std::array<Word, kWordsAtOnce> mask;
  std::array<unsigned char, crypto_stream_chacha20_NONCEBYTES> nonce;
  static_assert(sizeof nonce == sizeof stream);
  std::memcpy(nonce.data(), &stream, sizeof stream);
  for (const Peer& peer : peers_) {
    if (with[peer.place] == 0) continue;
    for (size_t first = 0; first < words.size(); first += kWordsAtOnce) {
      const auto piece = words.subspan(first, std::min(kWordsAtOnce, words.size() - first));
      crypto_stream_chacha20_xor_ic(reinterpret_cast<unsigned char*>(mask.data()), kZeros, piece.size_bytes(),
                                    nonce.data(), block + first * sizeof(Word) / kBlockBytes, peer.key.data());
      for (size_t i = 0; i < piece.size(); ++i) piece[i] = peer.adds ? piece[i] + mask[i] : piece[i] - mask[i];
    }
  }
}

template void PeerMasks::add_words(uint64_t, uint64_t, std::span<uint32_t>, const ReplicaSet&) const;
template void PeerMasks::add_words(uint64_t, uint64_t, std::span<uint64_t>, const ReplicaSet&) const;

}  // namespace modelet::agent
