#pragma once
// Where a run's policy comes from: the machine's profile (kept, else measured), searched; and what
// becomes of the profile when the run has ended.
#include <stop_token>

#include "tools/engine_flags.h"

namespace sluice::tools {

/// Has the engine search where there is something to decide: everything in memory is the best there
/// is. `flags` outlives the engine's opening and gets what was chosen.
void search_for_policy(const EngineFlags& flags, EngineOptions& options, std::stop_token cancel);

/// The machine's kept profile takes what the run found (src/profile/learn.h), a large change is
/// told. A profile from a file stays as it is.
void learn_from_run(const EngineFlags& flags, const Engine& engine);

}  // namespace sluice::tools
