#pragma once
// The fields of a completion request, one reader each: types and the ranges that parse alone can
// see; the rest is sampling::validate's. Internal to request.cc.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/jobs/request.h"

namespace sluice::jobs {

/// Why a line is no request; caught in parse_request.
struct Refusal {
  std::string code;
  std::string message;
};

/// Reads every field of `body` into `request`. A null is as if the field were absent.
/// Throws Refusal naming the field: unknown, of the wrong type, or with a value that is not
/// supported.
void read_body(const nlohmann::json& body, Request& request);

/// "a string", "the number 1.5", "an object": what a message says was found. Long values are not
/// repeated.
std::string describe(const nlohmann::json& value);

}  // namespace sluice::jobs
