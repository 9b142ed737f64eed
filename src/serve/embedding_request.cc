#include "src/serve/embedding_request.h"

#include <fmt/format.h>

#include "src/jobs/request_fields.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

int64_t whole_number(const std::string& name, const ordered_json& value, int64_t least) {
  if (!value.is_number_integer() || value < least || value > INT32_MAX)
    refuse_field(name, fmt::format("{} is {}; it must be a whole number, {} or more", name,
                                   jobs::describe(value), least));
  return value.get<int64_t>();
}

struct BodyReader {
  EmbeddingRequest& out;
  EmbeddingRoute route;
  int64_t vocab_size;

  std::vector<int32_t> ids_of(const std::string& field, const ordered_json& list) const {
    std::vector<int32_t> ids;
    for (const ordered_json& id : list) {
      if (!id.is_number_integer() || id < 0 || id >= vocab_size)
        refuse_field(field, fmt::format("{} has {} among its token ids; the model's are 0 to {}",
                                        field, jobs::describe(id), vocab_size - 1));
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

  void read_input(const std::string& field, const ordered_json& value) const {
    const auto add = [&](const ordered_json& one) {
      if (one.is_string() && !one.get_ref<const std::string&>().empty())
        out.inputs.emplace_back(one.get<std::string>());
      else if (one.is_array() && !one.empty() && route != EmbeddingRoute::kOllama)
        out.inputs.emplace_back(ids_of(field, one));
      else
        refuse_field(field,
                     fmt::format("{} has {}{}; an input is a text or a list of token ids "
                                 "that is not empty",
                                 field, one.is_string() || one.is_array() ? "an empty one, " : "",
                                 jobs::describe(one)));
    };
    if (!value.is_array()) return add(value);
    if (value.empty())
      refuse_field(field,
                   fmt::format("{} is an empty list; give a text or a list of texts", field));
    if (value.front().is_number()) return add(value);
    if (value.size() > kMostInputs)
      refuse_field(field, fmt::format("{} has {} inputs; at most {} are taken at once: send them "
                                      "in parts",
                                      field, value.size(), kMostInputs));
    for (const ordered_json& one : value) add(one);
  }

  // Whether the field is one that all interfaces have, or sluice's own.
  bool read_common(const std::string& name, const ordered_json& value) const {
    if (name == "model") {
      out.model = need_text(name, value);
    } else if (name == "dimensions") {
      out.dimensions = whole_number(name, value, 1);
    } else if (name == "pooling") {
      const std::string& asked = need_text(name, value);
      for (const auto& [known, pooling] : kPoolingNames)
        if (asked == known) out.pooling = pooling;
      if (out.pooling == Pooling::kNone)
        refuse_field(name, fmt::format("pooling is {}; \"last\", \"mean\" and \"cls\" are there",
                                       jobs::describe(value)));
    } else {
      return false;
    }
    return true;
  }

  void read_openai(const std::string& name, const ordered_json& value) const {
    if (name == "input") return read_input(name, value);
    if (name == "encoding_format") {
      const std::string& format = need_text(name, value);
      if (format != "float" && format != "base64")
        refuse_field(name, fmt::format("encoding_format is {}; \"float\" and \"base64\" are there",
                                       jobs::describe(value)));
      out.is_base64 = format == "base64";
    } else if (name == "truncate_prompt_tokens") {
      out.kept_tokens = whole_number(name, value, -1);
      if (out.kept_tokens == 0)
        refuse_field(name,
                     "truncate_prompt_tokens is 0; an input needs a token: give 1 or more, "
                     "or -1 for what the context holds");
    } else if (name == "add_special_tokens") {
      out.adds_special = need_flag(name, value);
    } else if (name == "normalize") {
      out.is_normalised = need_flag(name, value);
    } else if (name == "user") {
      need_text(name, value);
    } else {
      refuse_unknown(name);
    }
  }

  void read_ollama(const std::string& name, const ordered_json& value) const {
    if (name == out.input_field) {
      // An empty one loads the model.
      if (value != "" && value != ordered_json::array()) read_input(name, value);
    } else if (name == "truncate" && route == EmbeddingRoute::kOllama) {
      out.keeps_beginning = need_flag(name, value);
    } else if (name == "options") {
      const ordered_json* context = find_value(need_object(name, value), "num_ctx");
      if (context) out.wanted_context = whole_number("options", *context, 1);
    } else if (name == "keep_alive") {
      if (!value.is_number() && !value.is_string())
        refuse_field(name, "keep_alive must be a number or a string");
    } else {
      refuse_unknown(name);
    }
  }

  void read_llama(const std::string& name, const ordered_json& value) const {
    if (name == "content" || name == "input") return read_input(name, value);
    if (name != "embd_normalize") return refuse_unknown(name);
    if (value != 2 && value != -1)
      refuse_unsupported(name, fmt::format("embd_normalize is {}; 2, to length 1, and -1, not at "
                                           "all, are there",
                                           jobs::describe(value)));
    out.is_normalised = value == 2;
  }
};
}  // namespace

EmbeddingRequest parse_embedding(std::string_view body, EmbeddingRoute route, int64_t vocab_size) {
  const ordered_json object = parse_object(body);
  EmbeddingRequest out;
  if (route == EmbeddingRoute::kOllamaOne) out.input_field = "prompt";
  if (route == EmbeddingRoute::kLlama) out.input_field = "content";
  out.keeps_beginning = is_ollama(route);
  if (is_ollama(route)) out.is_normalised = route == EmbeddingRoute::kOllama;
  const BodyReader reader{out, route, vocab_size};
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || reader.read_common(name, value)) continue;
    if (route == EmbeddingRoute::kOpenAi)
      reader.read_openai(name, value);
    else if (is_ollama(route))
      reader.read_ollama(name, value);
    else
      reader.read_llama(name, value);
  }
  if (out.inputs.empty() && !is_ollama(route))
    refuse_field(out.input_field, fmt::format("{} is missing", out.input_field));
  return out;
}

std::string base64_of(std::string_view bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      out += i + j > bytes.size() ? '=' : kDigits[group >> (18 - 6 * j) & 63];
  }
  return out;
}

}  // namespace sluice::serve
