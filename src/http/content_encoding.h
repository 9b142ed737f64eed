#pragma once
// Bodies that come compressed (Content-Encoding: gzip, deflate), with a bound on what comes out.
// Pure.
#include <string>
#include <string_view>

#include "src/http/byte_budget.h"

namespace sluice::http {

/// Whether decode_body() knows the encoding: none, identity, gzip, x-gzip, deflate.
bool is_known_encoding(std::string_view encoding) noexcept;

/// How decoding ended.
enum class DecodeOutcome {
  kDone,
  kTooLarge,  ///< more than `most_bytes` would come out
  kNoRoom,    ///< more than the budget has left
  kBroken     ///< not of that encoding, or cut short
};
/// Replaces `body` by what it decodes to. `share` grows as bytes come out.
DecodeOutcome decode_body(std::string_view encoding, int64_t most_bytes, ByteShare& share,
                          std::string& body);

}  // namespace sluice::http
