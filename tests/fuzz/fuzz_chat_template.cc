// A chat template from a stranger's model: a TemplateError, or a bounded text.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/chat/template.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace chat = sluice::chat;
  static const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "system", "content": "é"}, {"role": "user", "content": "a"},
          {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}])");
  try {
    const chat::Template parsed(std::string(reinterpret_cast<const char*>(data), size));
    chat::Dict variables;
    variables.set("messages", chat::Value::from_json(messages));
    variables.set("add_generation_prompt", true);
    variables.set("bos_token", "<s>");
    parsed.render(variables);
    sluice::fuzz::accepted();
  } catch (const chat::TemplateError&) {
  }
  return 0;
}
