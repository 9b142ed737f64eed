#pragma once
// What a run says at its end: prefill and decode, memory against the plan, bytes and busy share of
// every lane.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policy/prediction.h"
#include "src/engine/engine.h"

namespace sluice::app {

/// The table of tiers and lanes, for people.
std::string run_table(const Engine& engine);
/// The same as JSON: load_s, prefill_s, ..., peak_bytes, budget_bytes, lanes, wall_s.
/// With `prediction`, what it said beside ("predicted").
nlohmann::ordered_json stats_json(const Engine& engine,
                                  const std::optional<policy::Prediction>& prediction = {});
/// With several classes of passes, a Markdown table of what each computed and how fast; else empty.
/// `first_tokens`: [class] seconds to the first tokens that came in its passes; may be empty.
std::string class_table(const Engine& engine,
                        const std::vector<std::vector<double>>& first_tokens = {});
/// One sentence: policy, memory planned, bytes streamed in each pass.
std::string plan_sentence(const Engine& engine);
/// policy::plan_table of the engine's plan against its budgets.
std::string engine_plan_table(const Engine& engine);
/// Says so when the policy streams a model that fits the budget; empty otherwise.
std::string fit_warning(const Engine& engine);

}  // namespace sluice::app
