#include "node_agent/replicas/peer_masks.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/collectives/gather_numbers.h"

namespace modelet::agent {
namespace {

constexpr size_t kKeyWords = crypto_scalarmult_BYTES / sizeof(uint64_t);

}  // namespace

PeerMasks::PeerMasks(comm::Group& peers, comm::Tag tag) {
  static_assert(sizeof(Key) == crypto_stream_chacha20_KEYBYTES && sizeof(Key) == crypto_scalarmult_BYTES);
  // The first call chooses libsodium's code for this CPU.
  MODELET_CHECK(sodium_init() >= 0, "libsodium does not start");
  Key secret, shared;
  std::array<uint64_t, kKeyWords> own;
  randombytes_buf(secret.data(), secret.size());
  crypto_scalarmult_base(reinterpret_cast<unsigned char*>(own.data()), secret.data());
  const auto size = static_cast<size_t>(peers.size()), self = static_cast<size_t>(peers.rank());
  const auto keys = comm::all_gather_numbers(peers, tag, own, std::vector<size_t>(size, kKeyWords));
  for (size_t peer = 0; peer < size; ++peer) {
    if (peer == self) continue;
    const auto* const theirs = reinterpret_cast<const unsigned char*>(keys[peer].data());
    if (crypto_scalarmult(shared.data(), secret.data(), theirs) != 0)
      throw FormatError(peers.node_name(static_cast<int>(peer)) + " sent something that is no key for masks");
    // The key depends on both public keys, in the order of ranks, as X25519 asks for.
    Peer& made = peers_.emplace_back(Peer{.key = {}, .adds = self < peer, .place = peer});
    crypto_generichash_state hash;
    crypto_generichash_init(&hash, nullptr, 0, made.key.size());
    crypto_generichash_update(&hash, shared.data(), shared.size());
    for (const size_t each : {std::min(self, peer), std::max(self, peer)})
      crypto_generichash_update(&hash, reinterpret_cast<const unsigned char*>(keys[each].data()), sizeof own);
    crypto_generichash_final(&hash, made.key.data(), made.key.size());
  }
  sodium_memzero(secret.data(), secret.size());
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
