#pragma once
// OpenAI's "functions" and "function_call", which "tools" and "tool_choice" have taken the place
// of: old programs send them still, and read the answer's call in their form. Pure, thread safe.
#include <nlohmann/json_fwd.hpp>

namespace sluice::serve {

/// Whether a chat request speaks of functions in the old way.
bool has_functions(const nlohmann::ordered_json& chat);
/// The same request with tools: functions, the choice among them, calls and results in messages
/// (which get ids). Throws ApiError where it has both, or what is no function.
nlohmann::ordered_json with_tools(const nlohmann::ordered_json& chat);

/// An answer's message with its one call in the old form; one without calls as it is.
nlohmann::ordered_json with_function_call(nlohmann::ordered_json message);

}  // namespace sluice::serve
