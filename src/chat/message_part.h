#pragma once
// A piece of an answer, as readers of messages give it.
#include <cstdint>
#include <string>

namespace sluice::chat {

/// A piece of an answer.
struct MessagePart {
  enum class Kind : uint8_t {
    kText,
    kThought,   ///< what the model thinks before it answers
    kCall,      ///< a call begins; text is the function's name
    kArguments  ///< more of the call's arguments, which are JSON
  };
  Kind kind = Kind::kText;
  std::string text;
  int call = 0;  ///< kCall, kArguments: which, from 0

  bool operator==(const MessagePart&) const = default;
};

}  // namespace sluice::chat
