#pragma once
// A chat's answer as OpenAI's message object. Pure, thread safe.
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "src/chat/message_reader.h"

namespace sluice::serve {

/// An id for a call: `length` letters and digits; 0: as OpenAI's.
std::string random_call_id(int length);
/// The whole message; `call_ids`: of its calls, in their order.
nlohmann::ordered_json message_json(std::span<const chat::MessagePart> parts,
                                    std::span<const std::string> call_ids);

}  // namespace sluice::serve
