#pragma once
// Calls of earlier turns for models that call by number: an answer's next number follows from
// theirs, and a model that is shown other ids writes such. Pure, thread safe.
#include <nlohmann/json_fwd.hpp>

#include "src/chat/tool_format.h"

namespace sluice::chat {

/// Gives the calls of `messages` (a list of OpenAI's) the ids of a format that has an id_begin, in
/// order from 0, whatever they were called; results are told of by their calls' new ids, and those
/// that follow a message with calls come in its calls' order, since a template may take them so. A
/// result whose call is not there stays as it is. Returns how many calls there are.
int64_t number_calls(const ToolFormat& format, nlohmann::ordered_json& messages);

}  // namespace sluice::chat
