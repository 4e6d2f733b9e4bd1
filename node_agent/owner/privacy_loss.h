// The privacy of an owner whose rounds carry Gaussian noise, as (epsilon, delta) for the owner as a whole: for any two runs
// of which one has what the owner changes and the other has nothing in its place, the probabilities of whatever others see
// differ by a factor of at most e^epsilon, but for cases of probability delta (McMahan et al., ICLR 2018).
//
// A round in which the sum can change by at most 1 and has noise with standard deviation s is a Gaussian mechanism. Such
// rounds compose to a Gaussian mechanism again, also if later ones depend on what earlier ones gave: their losses
// 1 / s^2 add up (Dong, Roth, Su, "Gaussian differential privacy", JRSS B 2022, corollary 3.3). The epsilon of a sum of
// losses is exact: Balle, Wang, "Improving the Gaussian mechanism for differential privacy" (ICML 2018, theorem 8). Renyi
// divergences (Mironov, CSF 2017) give a bound that is somewhat larger.
//
// That owners are drawn for a round is no reason to count less (Wang, Balle, Kasiviswanathan, AISTATS 2019): everybody
// knows who is drawn. An owner loses nothing in rounds in which it takes no part.
//
// Pure functions.
#pragma once

#include <cstdint>

namespace modelet::agent {

// The loss of rounds whose noise is cluster.noise; without noise, if there are any, infinite.
double privacy_loss(uint64_t rounds, double noise);

// The least epsilon for a loss, to nine digits. Infinite if the loss is more than 1e8. 0 < delta < 1.
double epsilon_of(double loss, double delta);

}  // namespace modelet::agent
