#include "src/serve/anthropic_answer.h"

#include <fmt/format.h>

#include <utility>

#include "src/serve/json_text.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

std::string anthropic_event(const char* type, const ordered_json& fields) {
  ordered_json out{{"type", type}};
  out.update(fields);
  return fmt::format("event: {}\ndata: {}\n\n", type, dump(out));
}

// As it begins; a call's input comes in pieces.
ordered_json empty_block(const Block& block) {
  switch (block.kind) {
    case Block::Kind::kText: return {{"type", "text"}, {"text", ""}};
    case Block::Kind::kThought: return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    case Block::Kind::kCall:
      return {{"type", "tool_use"},
              {"id", block.id},
              {"name", block.name},
              {"input", ordered_json::object()}};
  }
  return nullptr;
}
}  // namespace

ordered_json AnthropicAnswer::usage() const {
  return {{"input_tokens", prompt_tokens() - cached_tokens()},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached_tokens()},
          {"output_tokens", output_tokens()}};
}

ordered_json AnthropicAnswer::reason() const {
  if (!is_complete()) return nullptr;
  if (finish_reason() == "tool_calls") return "tool_use";
  if (finish_reason() == "length")
    return output_tokens() < shape().max_tokens ? "model_context_window_exceeded" : "max_tokens";
  return stop_string().empty() ? "end_turn" : "stop_sequence";
}

ordered_json AnthropicAnswer::stop_json() const {
  return stop_string().empty() ? ordered_json(nullptr) : ordered_json(stop_string());
}

ordered_json AnthropicAnswer::message() const {
  return {{"id", shape().id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", shape().model},
          {"content", ordered_json::array()},
          {"stop_reason", reason()},
          {"stop_sequence", stop_json()},
          {"usage", usage()}};
}

std::string AnthropicAnswer::begun() {
  return anthropic_event("message_start", {{"message", message()}}) + sign_of_life();
}

std::string AnthropicAnswer::opened(size_t block) {
  return anthropic_event("content_block_start",
                         {{"index", block}, {"content_block", empty_block(blocks()[block])}});
}

std::string AnthropicAnswer::grown(size_t block, const std::string& more) {
  ordered_json delta;
  switch (blocks()[block].kind) {
    case Block::Kind::kText: delta = {{"type", "text_delta"}, {"text", more}}; break;
    case Block::Kind::kThought: delta = {{"type", "thinking_delta"}, {"thinking", more}}; break;
    case Block::Kind::kCall: delta = {{"type", "input_json_delta"}, {"partial_json", more}}; break;
  }
  return anthropic_event("content_block_delta", {{"index", block}, {"delta", std::move(delta)}});
}

std::string AnthropicAnswer::closed(size_t block) {
  return anthropic_event("content_block_stop", {{"index", block}});
}

std::string AnthropicAnswer::ended() {
  return anthropic_event("message_delta",
                         {{"delta", {{"stop_reason", reason()}, {"stop_sequence", stop_json()}}},
                          {"usage", usage()}}) +
         anthropic_event("message_stop", ordered_json::object());
}

std::string AnthropicAnswer::failed(const ApiError& error) {
  return fmt::format("event: error\ndata: {}\n\n", error_body(error, error_shape()));
}

// A call that was cut short has no input that could be told: it is left out, and the reason says
// why.
std::string AnthropicAnswer::whole() {
  ordered_json out = message();
  for (size_t i = 0; i < blocks().size(); ++i) {
    const Block& of = blocks()[i];
    ordered_json block = empty_block(of);
    if (of.kind == Block::Kind::kText) {
      block["text"] = of.text;
    } else if (of.kind == Block::Kind::kThought) {
      block["thinking"] = of.text;
    } else {
      auto arguments = arguments_of(i);
      if (!arguments) continue;
      block["input"] = std::move(*arguments);
    }
    out["content"].push_back(std::move(block));
  }
  if (out["content"].empty()) out["content"].push_back(empty_block({}));
  return dump(out);
}

}  // namespace sluice::serve
