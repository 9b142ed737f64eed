#pragma once
// What `sluice plan` answers before somebody buys: --fits, --target, --price.
#include <optional>
#include <stop_token>
#include <string>

#include "tools/plan_question.h"

namespace sluice::tools {

/// Prints which built-in models, those whose names hold the model's where one is given, the machine
/// runs. Errors: kUser, kCancelled.
void run_fits(const PlanFlags& flags, const std::stop_token& stop);

/// Prints what to change so that the model reaches --target. Errors: kUser, kResource, kCancelled.
void run_target(const PlanFlags& flags, const std::stop_token& stop);

/// What a million new tokens cost at --price; nothing where there is none. Errors: kUser.
std::optional<double> cost_of_million(const PlanFlags& flags, double tokens_per_second);
/// "a million new tokens cost 3.21 (at 0.6 an hour)".
std::string cost_text(double cost, const std::string& price);

}  // namespace sluice::tools
