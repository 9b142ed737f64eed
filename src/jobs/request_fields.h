#pragma once
// The fields of a completion request, one reader each: types and the ranges that parse alone can
// see; the rest is sampling::validate's. For request.cc and the server.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/jobs/request.h"

namespace sluice::jobs {

/// Codes of a Refusal: what breaks the rules of the interface, and what sluice does not do.
inline constexpr const char* kInvalid = "invalid_request";
inline constexpr const char* kUnsupported = "unsupported";

/// Why a line is no request; caught in parse_request.
struct Refusal {
  std::string code;
  std::string message;
  std::string param;  ///< the field; empty: no single one
};

/// Reads the field `name` into `params` when it is one of sampling (all but logprobs, which the
/// interfaces write differently); a null changes nothing. False: it is another field. Throws
/// Refusal.
bool read_sampling_field(const std::string& name, const nlohmann::ordered_json& value,
                         sampling::SamplingParams& params);
void refuse_unknown_field(const std::string& name);

/// Fields of OpenAI's and vLLM's interfaces that change nothing of the answer here, or nothing with
/// the value that is taken (docs/serving.md lists them). False: it is none. Throws Refusal for a
/// value that would change something.
bool read_neutral_field(const std::string& name, const nlohmann::ordered_json& value);

/// Reads every field of `body` into `request`. A null is as if the field were absent.
/// Throws Refusal naming the field: unknown, of the wrong type, or with a value that is not
/// supported.
void read_body(const nlohmann::ordered_json& body, Request& request);

/// "a string", "the number 1.5", "an object": what a message says was found. Long values are not
/// repeated.
std::string describe(const nlohmann::ordered_json& value);

}  // namespace sluice::jobs
