// Mutants: mistakes that the simulation makes on purpose in what it passes between the parts, as if the
// product had made them. The histories must find each mutant, or they prove nothing. The code of the product
// has no mutants: what a part sends or receives is changed on its way.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace modelet::simulation {

enum class Mutant : uint8_t {
  kNone,
  kNoFencingOfAgents,  // the scheduler takes messages of earlier epochs for current ones
  kNoFencingOfRanks,   // a job accepts messages from ranks of earlier epochs
  kPruneBeforeStable,  // older snapshots are removed when a newer one is written
  kSendBeforePersist,  // records are written after the messages were sent
  kForgetRecords,      // one record in ten is not written
  // A repeated event of an agent gets a new number and a new time. One of the two alone would be harmless: an
  // event with a known number is dropped, and so is one with a known text and time.
  kDuplicatesCount,
  kDuplicatesInSteps,  // a job counts a message twice if it arrives twice
  kHeldBeforeSent,     // a file counts as held elsewhere before it is there
  kNothingSentAgain,   // an agent does not repeat its reports after it lost its connection
  kStopsAreLost,       // Stop reaches no node
  kTokensAreLost,      // a submission that is sent again cannot be told from a new one
  kNoRepair,           // a node does not fetch what is damaged on its disk
  kTasksAreForgotten,  // a scheduler that restarts does not know the tasks that had not ended
  kTasksAreSwapped,    // a task that is formed anew is another one for its node
  kGivenUpTasksGoOn,   // Abort does not reach the node of a task
  kTurnsAreLost,       // the scheduler prefers some runs to others
  kReleasedTooEarly,   // a node that asks to leave is released at once
  kOwnersBeginAnew,    // an owner that comes back does not begin with the present state
  kOwnersDrawApart,    // an owner that comes back draws who takes part in a round as if it were the run's first group
  kRoundsCountTwice,   // the others have taken up a round that an owner has not seen when their group ends, and keep it
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
    MutantName{Mutant::kTokensAreLost, "tokens-are-lost"},
    MutantName{Mutant::kNoRepair, "no-repair"},
    MutantName{Mutant::kTasksAreForgotten, "tasks-are-forgotten"},
    MutantName{Mutant::kTasksAreSwapped, "tasks-are-swapped"},
    MutantName{Mutant::kGivenUpTasksGoOn, "given-up-tasks-go-on"},
    MutantName{Mutant::kTurnsAreLost, "turns-are-lost"},
    MutantName{Mutant::kReleasedTooEarly, "released-too-early"},
    MutantName{Mutant::kOwnersBeginAnew, "owners-begin-anew"},
    MutantName{Mutant::kOwnersDrawApart, "owners-draw-apart"},
    MutantName{Mutant::kRoundsCountTwice, "rounds-count-twice"},
};

}  // namespace modelet::simulation
