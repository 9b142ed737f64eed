#include "src/serve/responses_answer.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "src/serve/file_store.h"
#include "src/serve/json_text.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr std::string_view kInProgress = "in_progress";
constexpr std::string_view kIncomplete = "incomplete";
constexpr std::string_view kCompleted = "completed";

// 0.7 and not what a float of it is.
double as_written(float value) { return std::stod(fmt::format("{}", value)); }
}  // namespace

ResponsesAnswer::ResponsesAnswer(AnswerShape shape, const ResponsesRequest& call)
    : BlockAnswer(std::move(shape), call.chat.streams),
      echo_(call.echo),
      params_(call.chat.params) {}

const std::string& ResponsesAnswer::item_id(size_t block) {
  while (item_ids_.size() <= block) {
    const Block::Kind kind = blocks()[item_ids_.size()].kind;
    item_ids_.push_back(random_name(kind == Block::Kind::kText   ? "msg_"
                                    : kind == Block::Kind::kCall ? "fc_"
                                                                 : "rs_"));
  }
  return item_ids_[block];
}

ordered_json ResponsesAnswer::part_json(size_t block, const std::string& text) const {
  if (blocks()[block].kind == Block::Kind::kThought)
    return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", ordered_json::array()},
          {"logprobs", ordered_json::array()}};
}

// A block under way has nothing in it yet.
ordered_json ResponsesAnswer::item_json(size_t block, std::string_view status) {
  const Block& of = blocks()[block];
  const bool is_empty = status == kInProgress;
  if (of.kind == Block::Kind::kCall)
    return {{"id", item_id(block)}, {"type", "function_call"},
            {"status", status},     {"call_id", of.id},
            {"name", of.name},      {"arguments", is_empty ? "" : of.text}};
  auto content = ordered_json::array();
  if (!is_empty) content.push_back(part_json(block, of.text));
  if (of.kind == Block::Kind::kThought)
    return {{"id", item_id(block)},
            {"type", "reasoning"},
            {"summary", ordered_json::array()},
            {"content", std::move(content)},
            {"status", status}};
  return {{"id", item_id(block)},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

std::string_view ResponsesAnswer::status() const {
  if (!error_.is_null()) return "failed";
  return finish_reason() == "length" ? kIncomplete : kCompleted;
}

ordered_json ResponsesAnswer::response_json(std::string_view status, bool has_output) {
  ordered_json out{{"id", shape().id},
                   {"object", "response"},
                   {"created_at", shape().created},
                   {"status", status},
                   {"background", false},
                   {"error", error_},
                   {"incomplete_details", nullptr},
                   {"instructions", nullptr},
                   {"max_output_tokens", nullptr},
                   {"model", shape().model},
                   {"output", ordered_json::array()},
                   {"parallel_tool_calls", true},
                   {"previous_response_id", nullptr},
                   {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                   {"service_tier", "default"},
                   {"store", false},
                   {"temperature", as_written(params_.temperature)},
                   {"text", {{"format", {{"type", "text"}}}}},
                   {"tool_choice", "auto"},
                   {"tools", ordered_json::array()},
                   {"top_logprobs", 0},
                   {"top_p", as_written(params_.top_p)},
                   {"truncation", "disabled"},
                   {"usage", nullptr},
                   {"user", nullptr},
                   {"metadata", ordered_json::object()}};
  for (const auto& [name, value] : echo_.items()) out[name] = value;
  if (status == kIncomplete) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (status == kCompleted) out["completed_at"] = std::time(nullptr);
  if (!has_output) return out;
  for (size_t i = 0; i < blocks().size(); ++i)
    out["output"].push_back(item_json(i, is_cut(i) ? kIncomplete : kCompleted));
  if (is_complete())
    out["usage"] = {
        {"input_tokens", prompt_tokens()},
        {"input_tokens_details", {{"cached_tokens", cached_tokens()}, {"cache_write_tokens", 0}}},
        {"output_tokens", output_tokens()},
        {"output_tokens_details", {{"reasoning_tokens", thought_tokens()}}},
        {"total_tokens", prompt_tokens() + output_tokens()}};
  return out;
}

std::string ResponsesAnswer::event(const char* type, ordered_json fields) {
  ordered_json out{{"type", type}, {"sequence_number", sequence_++}};
  out.update(fields);
  return fmt::format("event: {}\ndata: {}\n\n", type, dump(out));
}

ordered_json ResponsesAnswer::place(size_t block) {
  ordered_json out{{"item_id", item_id(block)}, {"output_index", block}};
  if (blocks()[block].kind != Block::Kind::kCall) out["content_index"] = 0;
  return out;
}

std::string ResponsesAnswer::begun() {
  std::string out;
  for (const char* type : {"response.created", "response.in_progress"})
    out += event(type, {{"response", response_json(kInProgress, false)}});
  return out;
}

std::string ResponsesAnswer::opened(size_t block) {
  std::string out = event("response.output_item.added",
                          {{"output_index", block}, {"item", item_json(block, kInProgress)}});
  if (blocks()[block].kind == Block::Kind::kCall) return out;
  ordered_json fields = place(block);
  fields["part"] = part_json(block, "");
  return out + event("response.content_part.added", std::move(fields));
}

std::string ResponsesAnswer::grown(size_t block, const std::string& more) {
  ordered_json fields = place(block);
  fields["delta"] = more;
  switch (blocks()[block].kind) {
    case Block::Kind::kText:
      fields["logprobs"] = ordered_json::array();
      return event("response.output_text.delta", std::move(fields));
    case Block::Kind::kThought: return event("response.reasoning_text.delta", std::move(fields));
    case Block::Kind::kCall:
      return event("response.function_call_arguments.delta", std::move(fields));
  }
  return {};
}

std::string ResponsesAnswer::closed(size_t block) {
  const Block& of = blocks()[block];
  std::string out;
  ordered_json fields = place(block);
  if (of.kind == Block::Kind::kCall) {
    fields["name"] = of.name;
    fields["arguments"] = of.text;
    out = event("response.function_call_arguments.done", std::move(fields));
  } else {
    fields["text"] = of.text;
    const bool is_text = of.kind == Block::Kind::kText;
    if (is_text) fields["logprobs"] = ordered_json::array();
    out = event(is_text ? "response.output_text.done" : "response.reasoning_text.done",
                std::move(fields));
    fields = place(block);
    fields["part"] = part_json(block, of.text);
    out += event("response.content_part.done", std::move(fields));
  }
  const std::string_view status = is_cut(block) ? kIncomplete : kCompleted;
  return out + event("response.output_item.done",
                     {{"output_index", block}, {"item", item_json(block, status)}});
}

std::string ResponsesAnswer::ended() {
  const std::string_view how = status();
  return event(fmt::format("response.{}", how).c_str(), {{"response", response_json(how, true)}});
}

std::string ResponsesAnswer::failed(const ApiError& error) {
  error_ = {{"code", error.status == 429 ? "rate_limit_exceeded" : "server_error"},
            {"message", error.message}};
  return ended();
}

std::string ResponsesAnswer::whole() { return dump(response_json(status(), true)); }

}  // namespace sluice::serve
