#include "src/jobs/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "src/jobs/utf8.h"

namespace sluice::jobs {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr float kLowestLogprob = -9999.0F;  // JSON has no -infinity; OpenAI and vLLM write this

// The double whose shortest text is the float's shortest text: -0.1, not -0.10000000149011612.
double shortest(float logprob) {
  const float finite = std::isnan(logprob) ? kLowestLogprob : std::max(logprob, kLowestLogprob);
  return std::strtod(fmt::format("{}", finite).c_str(), nullptr);
}

// The "logprobs" object of a completion. text_offset counts characters, as OpenAI does.
OrderedJson logprobs_of(const std::vector<TokenText>& tokens) {
  OrderedJson texts = OrderedJson::array(), logprobs = OrderedJson::array(),
              tops = OrderedJson::array(), offsets = OrderedJson::array();
  int64_t offset = 0;
  for (const TokenText& token : tokens) {
    texts.push_back(token.text);
    logprobs.push_back(shortest(token.logprob));
    OrderedJson top = token.top.empty() ? OrderedJson(nullptr) : OrderedJson::object();
    for (const NamedToken& other : token.top) {
      if (!top.contains(other.text))
        top[other.text] =
            shortest(other.logprob);  // two tokens may have one text: the likelier stays
    }
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += count_characters(token.text);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

// The same of a chat's answer.
OrderedJson chat_logprobs_of(const std::vector<TokenText>& tokens) {
  const auto entry = [](const NamedToken& of) {
    OrderedJson bytes = of.bytes.empty() ? OrderedJson(nullptr) : OrderedJson::array();
    for (const char byte : of.bytes) bytes.push_back(static_cast<unsigned char>(byte));
    return OrderedJson{
        {"token", of.text}, {"logprob", shortest(of.logprob)}, {"bytes", std::move(bytes)}};
  };
  OrderedJson content = OrderedJson::array();
  for (const TokenText& token : tokens) {
    OrderedJson one = entry(token);
    one["top_logprobs"] = OrderedJson::array();
    for (const NamedToken& other : token.top) one["top_logprobs"].push_back(entry(other));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

std::string line_of(const OrderedJson& record) {
  return record.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string answered_line(const Request& request, OrderedJson body, const std::string& config) {
  return line_of(
      {{"id", "batch_req_" + request.key},
       {"custom_id", request.custom_id},
       {"response",
        {{"status_code", 200}, {"request_id", "req_" + request.key}, {"body", std::move(body)}}},
       {"error", nullptr},
       {"sluice", {{"key", request.key}, {"config", config}}}});
}

}  // namespace

std::string answer_line(const Request& request, const Completion& completion,
                        const std::string& model, const std::string& config, int64_t created) {
  OrderedJson choice = {{"index", 0}};
  if (!completion.message.empty())
    choice["message"] = OrderedJson::parse(completion.message);
  else if (request.is_chat)
    choice["message"] = {{"role", "assistant"}, {"content", completion.text}};
  else
    choice["text"] = completion.text;
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = completion.finish_reason;
  if (completion.logprobs)
    choice["logprobs"] = request.is_chat ? chat_logprobs_of(*completion.logprobs)
                                         : logprobs_of(*completion.logprobs);
  OrderedJson body = {
      {"id", (request.is_chat ? "chatcmpl-" : "cmpl-") + request.key},
      {"object", request.is_chat ? "chat.completion" : "text_completion"},
      {"created", created},
      {"model", model},
      {"choices", OrderedJson::array({std::move(choice)})},
      {"usage",
       {{"prompt_tokens", completion.prompt_tokens},
        {"completion_tokens", completion.completion_tokens},
        {"total_tokens", completion.prompt_tokens + completion.completion_tokens}}}};
  return answered_line(request, std::move(body), config);
}

std::string routed_line(const Request& request, std::string_view body, const std::string& config) {
  return answered_line(request, OrderedJson::parse(body), config);
}

std::string error_line(const RequestError& error, const std::string& config) {
  return line_of(
      {{"id", "batch_req_" + error.key},
       {"custom_id", error.custom_id.empty() ? OrderedJson(nullptr) : OrderedJson(error.custom_id)},
       {"response", nullptr},
       {"error", {{"code", error.code}, {"message", error.message}, {"line", error.line_number}}},
       {"sluice", {{"key", error.key}, {"config", config}}}});
}

std::optional<StoredRecord> read_record(std::string_view line) {
  // The parser would take a zero byte for the end.
  if (!line.starts_with(kRecordStart) || line.find('\0') != std::string_view::npos)
    return std::nullopt;
  const auto record = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (!record.is_object()) return std::nullopt;  // discarded when the line is not JSON
  const auto member = [&record](const char* name) {
    const auto found = record.find(name);
    return found == record.end() ? nlohmann::json() : *found;
  };
  const auto mark = member("sluice");
  if (!mark.is_object() || !mark.contains("key") || !mark.contains("config")) return std::nullopt;
  if (!mark["key"].is_string() || !mark["config"].is_string()) return std::nullopt;
  const auto key = ContentKey::from_hex(mark["key"].get_ref<const std::string&>());
  if (!key) return std::nullopt;

  StoredRecord stored;
  stored.key = *key;
  stored.config = mark["config"];
  const auto custom_id = member("custom_id");
  if (custom_id.is_string())
    stored.custom_id = custom_id;
  else if (!custom_id.is_null())
    return std::nullopt;
  stored.is_answer = record.contains("response") && record["response"].is_object();
  if (stored.is_answer == member("error").is_object())
    return std::nullopt;  // one of the two, never both
  if (!stored.is_answer && record["error"].contains("line") &&
      record["error"]["line"].is_number_integer())
    stored.error_line = record["error"]["line"];
  if (stored.is_answer && stored.custom_id.empty()) return std::nullopt;
  return stored;
}

}  // namespace sluice::jobs
