#pragma once
// One line of a batch job: an OpenAI batch line for /v1/completions or /v1/chat/completions, or a
// plain {"prompt": ..., "max_tokens": ...} or {"messages": [...], ...}. A line is either a Request
// or a RequestError; nothing in it is ignored in silence: a field that would change the answer and
// is not supported is an error that names it. Pure functions, thread-safe.
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/sampling/params.h"

namespace sluice::jobs {

constexpr int64_t kMaxLineBytes = int64_t{64} << 20;  // longer lines become an error record
constexpr int64_t kMaxLineValues =
    int64_t{2} << 20;  // JSON values in a line: bounds memory, not prompts of text
constexpr int kMaxCustomIdBytes = 1024;

struct Request {
  std::string custom_id;  // "line-<n>" where a plain line gives none
  std::string prompt;     // text, when prompt_ids is empty; of a chat: its messages as JSON
  bool is_chat = false;
  std::string chat;  // of a chat: tools, tool_choice and the like as one JSON object; empty: none
  std::vector<int32_t> prompt_ids;  // token ids, when the line gives those
  sampling::SamplingParams params;  // validated
  std::string method, url, model;   // as given; empty in plain lines
  /// Of a routed line (RoutedLines) its body as JSON, of which only `model` and, for plain lines,
  /// `url` are read; else empty.
  std::string body;
  int64_t line_number = 0;  // from 1
  std::string key;  // 32 hex digits: hash of custom_id, prompt and params; what resuming compares
};

/// Why a line is no request.
struct RequestError {
  std::string custom_id;    // empty when it could not be read
  int64_t line_number = 0;  // from 1
  std::string code;         // invalid_utf8, invalid_json, invalid_request, unsupported,
                            // duplicate_custom_id, line_too_long
  std::string message;      // what, and how to mend it
  std::string key;          // hash of line number and text
};

using ParsedLine = std::variant<Request, RequestError>;

/// Which lines a server's routes answer, as they answer callers; what is in them the routes read.
enum class RoutedLines : uint8_t {
  kNone,  ///< /v1/completions and /v1/chat/completions of one answer, and no other
  kMore,  ///< lines for /v1/embeddings and /v1/responses, and of several answers (n, best_of)
  kAll
};

/// Reads one line (without its line end). `defaults` hold for what the line does not give. Token
/// ids (prompt, stop_token_ids, logit_bias) must be below `vocab_size`; 0 leaves that unchecked.
/// Never throws on input.
ParsedLine parse_request(std::string_view line, const sampling::SamplingParams& defaults,
                         int64_t line_number, int64_t vocab_size = 0,
                         RoutedLines routed = RoutedLines::kNone);

/// The error record of a line that cannot be a request; its key comes from line number and text.
RequestError line_error(std::string_view line, int64_t line_number, std::string custom_id,
                        std::string code, std::string message);

}  // namespace sluice::jobs
