#pragma once
// How many experts of a layer a pass asks for that are in no slot, before anybody has run the
// model: fitted to a router whose choices are skewed (some experts are everybody's) and sticky (a
// sequence goes on with those it has), which in turn was fitted to measured routing. One sequence
// alone has in the slots what it has used; what many ask for together spreads wider, and what all
// like is there. What several tokens of one text ask for spreads less than what as many texts do: a
// pass is counted in *independent tokens*, one of each of so many sequences that together ask for
// as many experts. Expected numbers; a run counts its own. Pure.
#include <cstdint>

#include "src/schedule/schedule.h"

namespace sluice::policy {

/// A layer's experts, and how many of them are in slots.
struct ExpertShare {
  int64_t experts = 1;
  double chosen = 1;  ///< by a token
  int64_t slots = 0;
};

/// Independent tokens of a run of `run` consecutive tokens of one sequence: run / (1 + (run - 1) /
/// 3)^0.4. Runs of several sequences add up. No more than the run has, one of one token; more for
/// a longer run, and for one that is dealt to more sequences. Fitted to measured traces and to
/// simulated routing, of which the experts asked for are within a third (tests).
double independent_tokens(int64_t run) noexcept;

/// Tokens of a pass: all of them, and how many independent ones these are.
struct RoutedTokens {
  int64_t all = 0;
  double independent = 0;

  /// A run of consecutive tokens of another sequence, or in another micro-batch.
  void add_run(int64_t run) noexcept {
    all += run;
    independent += independent_tokens(run);
  }
};

/// The longest run that is no more than so many independent tokens, and no longer than `most`.
int64_t longest_run(double tokens, int64_t most) noexcept;

/// Of the experts in no slot, the share that a pass of so many independent tokens asks for:
/// 1 - (1 + a tokens / 2)^-2, a mixture of rates, where a token asks for an expert with rate a.
/// Within a quarter of what simulated routing gives for 16 to 256 sequences, and half for one
/// (tests).
double missing_share(const ExpertShare& layer, double tokens) noexcept;

/// Distinct experts that such a pass asks for, in slots or not; at least a token's.
double asked_experts(const ExpertShare& layer, double tokens) noexcept;

/// Those of a layer that take turns in slots; a token chooses as many of them as of any others.
ExpertShare share_in_turns(const ScheduleExperts& layer, int64_t chosen) noexcept;

/// Distinct experts of a layer with slots that a micro-batch of so many independent tokens asks
/// for, by where they are. Expected numbers.
struct AskedExperts {
  double resident = 0;
  double held = 0;     ///< in slots
  double missing = 0;  ///< in none
  double all() const noexcept { return resident + held + missing; }
};
AskedExperts asked_experts(const ScheduleExperts& layer, int64_t chosen, double tokens) noexcept;

/// Share of a layer's experts that so many independent tokens go to where each is as likely as any
/// other; slots make no difference.
double even_share(const ExpertShare& layer, double tokens) noexcept;

/// The most independent tokens of a pass that had better load what it asks for than all experts in
/// no slot: a pass that asks has to have routed before it loads, so it does not pay where it asks
/// for most. 0: none.
int64_t most_demanding_tokens(const ExpertShare& layer) noexcept;

}  // namespace sluice::policy
