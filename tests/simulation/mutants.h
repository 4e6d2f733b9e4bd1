// Mutants: mistakes that the layer between the parts makes on purpose, as if the product had made them. Each must be
// found, or the histories prove nothing. None is in the product's code: what a part sends or gets is changed on
// its way.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace modelet::simulation {

enum class Mutant : uint8_t {
  kNone,
  kNoFencingOfAgents,     // the scheduler takes messages of earlier epochs for ones of the present
  kNoFencingOfRanks,      // a job takes the messages of ranks of earlier epochs
  kPruneBeforeStable,     // older snapshots go when a newer one is written
  kSendBeforePersist,     // what is to be written down is written after the messages are sent
  kForgetRecords,         // a record in ten is not written down
  // An agent's event that comes again is numbered and stamped anew. Either alone is harmless: what has the number, or
  // the text with its time, of an event that came before is dropped.
  kDuplicatesCount,
  kDuplicatesInSteps,     // a job counts a message of a rank that comes twice twice
  kHeldBeforeSent,        // a file counts as held elsewhere before it is
  kNothingSentAgain,      // an agent whose connection was lost does not repeat what it had to say
  kStopsAreLost,          // Stop reaches nobody
};

struct MutantName {
  Mutant mutant;
  std::string_view name;
};
inline constexpr std::array kMutants = {
    MutantName{Mutant::kNoFencingOfAgents, "no-fencing-of-agents"},
    MutantName{Mutant::kNoFencingOfRanks, "no-fencing-of-ranks"},
    MutantName{Mutant::kPruneBeforeStable, "prune-before-stable"},
    MutantName{Mutant::kSendBeforePersist, "send-before-persist"},
    MutantName{Mutant::kForgetRecords, "forget-records"},
    MutantName{Mutant::kDuplicatesCount, "duplicates-count"},
    MutantName{Mutant::kDuplicatesInSteps, "duplicates-in-steps"},
    MutantName{Mutant::kHeldBeforeSent, "held-before-sent"},
    MutantName{Mutant::kNothingSentAgain, "nothing-sent-again"},
    MutantName{Mutant::kStopsAreLost, "stops-are-lost"},
};

}  // namespace modelet::simulation
