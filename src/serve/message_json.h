#pragma once
// A chat's answer as OpenAI's message object. Pure, thread safe.
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "src/chat/message_reader.h"

namespace sluice::serve {

/// An id for a call that an answer of `form` has begun, as the format has ids: of letters and
/// digits, like OpenAI's where it says nothing, or of the name and the call's number.
std::string call_id(const chat::MessageForm& form, const chat::MessagePart& call);
/// The whole message; `call_ids`: of its calls, in their order.
nlohmann::ordered_json message_json(std::span<const chat::MessagePart> parts,
                                    std::span<const std::string> call_ids);

}  // namespace sluice::serve
