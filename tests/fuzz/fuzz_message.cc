// An answer in one of the formats of calls: however it is cut, the same parts; no text is lost
// where nothing is a call.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/chat/message_reader.h"
#include "tests/fuzz/fuzzing.h"

namespace {
using sluice::chat::MessageForm;
using sluice::chat::MessagePart;
using sluice::chat::MessageReader;

std::string read(const MessageForm& form, const std::string& text, size_t step) {
  MessageReader reader(form);
  std::string out;
  MessagePart::Kind last = MessagePart::Kind::kText;
  int call = -1;
  const auto add = [&](const std::vector<MessagePart>& parts) {
    for (const MessagePart& part : parts) {
      if (part.kind != last || part.call != call || part.kind == MessagePart::Kind::kCall)
        out += '\x01' + std::to_string(static_cast<int>(part.kind)) + ':';
      out += part.text;
      last = part.kind;
      call = part.call;
    }
  };
  for (size_t at = 0; at < text.size(); at += step) add(reader.add(text.substr(at, step)));
  add(reader.finish());
  return out;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const auto names = sluice::chat::tool_format_names();
  MessageForm form;
  form.calls = sluice::chat::find_tool_format(names[data[0] % names.size()]);
  form.parameters["f"] = {{"properties", {{"a", {{"type", "string"}}}}}};
  form.has_thoughts = (data[1] & 1) != 0;
  form.begins_in_thought = (data[1] & 2) != 0;
  form.begins_in_call = (data[1] & 4) != 0;
  const std::string text(reinterpret_cast<const char*>(data + 2), size - 2);
  const std::string whole = read(form, text, text.size() + 1);
  if (whole.find('\x01') != std::string::npos) sluice::fuzz::accepted();
  for (const size_t step : {1, 3, 7})
    if (read(form, text, step) != whole) std::abort();
  return 0;
}
