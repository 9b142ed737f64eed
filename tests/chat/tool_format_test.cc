// Formats of calls against the templates of real models: what a template writes for a call is read
// as that call.
#include "src/chat/tool_format.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "src/chat/message_reader.h"

namespace sluice::chat {
namespace {

using nlohmann::ordered_json;

ChatTemplateSource source_of(const std::string& name) {
  const std::string path = std::string(SLUICE_FIXTURES) + "/chat/templates/" + name + ".jinja";
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  ChatTemplateSource out;
  out.text = text.str();
  out.bos_token = "<s>";
  out.eos_token = "</s>";
  out.origin = path;
  return out;
}

// They write calls of earlier turns, but never show tools.
const std::set<std::string> kShowNoTools{"deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
                                         "deepseek-ai-DeepSeek-V3.1"};
const std::map<std::string, std::string> kFormats{
    {"Qwen-Qwen2.5-7B-Instruct", "hermes"},
    {"Bielik-11B-v3.0-Instruct", "hermes"},
    {"ibm-granite-granite-4.1", "hermes"},
    {"Qwen3-Coder", "qwen3_coder"},
    {"GLM-4.7-Flash", "glm47"},
    {"mistral-v3", "mistral"},
    {"mistral-v7_spm", "mistral"},
    {"mistralai-Mistral-Nemo-Instruct-2407", "mistral"},
    {"Mistral-Small-3.2-24B-Instruct-2506", "mistral_args"},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek_v3"},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek_v31"}};

const ordered_json kTools = ordered_json::parse(
    R"([{"type": "function", "function": {"name": "add_up", "description": "Adds.",
         "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "one"}},
         "required": ["a"]}}}])");

// The prompt of a conversation in which the model has called; `as_text`: the arguments as text, as
// some templates take them.
std::string rendered(const ChatTemplate& with, bool as_text) {
  const ordered_json arguments{{"a", 4}, {"b", "x } y"}};
  const ordered_json messages{
      {{"role", "user"}, {"content", "What is it?"}},
      {{"role", "assistant"},
       {"content", as_text ? ordered_json(nullptr) : ordered_json("")},
       {"tool_calls",
        {{{"id", "abcdefghi"},
          {"type", "function"},
          {"function",
           {{"name", "add_up"},
            {"arguments", as_text ? ordered_json(arguments.dump()) : arguments}}}}}}}};
  return with.render(messages, kTools, false, nullptr);
}

TEST(ToolFormat, ReadsTheCallsThatTemplatesOfRealModelsWrite) {
  for (const auto& [name, format_name] : kFormats) {
    SCOPED_TRACE(name);
    const ChatTemplateSource source = source_of(name);
    const ToolFormat* format = tool_format_of(source);
    if (kShowNoTools.contains(name)) {
      EXPECT_EQ(format, nullptr);
      format = find_tool_format(format_name);
    }
    ASSERT_NE(format, nullptr);
    EXPECT_EQ(format->name, format_name);
    const ChatTemplate with(source);
    const std::string prompt = rendered(with, format_name == "deepseek_v3");
    // The last call that it holds; templates show one in their instructions, too.
    const size_t at = prompt.rfind(format->trigger);
    ASSERT_NE(at, std::string::npos) << prompt;
    MessageForm form;
    form.calls = format;
    MessageReader reader(form);
    auto parts = reader.add(prompt.substr(at));
    const auto rest = reader.finish();
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_GE(parts.size(), 2u) << prompt.substr(at);
    EXPECT_EQ(parts[0], (MessagePart{MessagePart::Kind::kCall, "add_up", 0})) << prompt.substr(at);
    EXPECT_EQ(parts[1].kind, MessagePart::Kind::kArguments);
    EXPECT_EQ(ordered_json::parse(parts[1].text), (ordered_json{{"a", 4}, {"b", "x } y"}}));
  }
}

TEST(ToolFormat, IsNotGuessedWhereTheTemplateShowsNoToolsOrOthers) {
  for (const char* name : {"template_chatml", "template_alpaca", "microsoft-Phi-3.5-mini-instruct",
                           "MiniMax-M2", "mistral-v1"})
    EXPECT_EQ(tool_format_of(source_of(name)), nullptr) << name;
  EXPECT_EQ(find_tool_format("none"), nullptr);
  for (const std::string& name : tool_format_names()) EXPECT_EQ(find_tool_format(name)->name, name);
}

// This copy of it fills a list while it runs, which templates may not; numbered_calls_test.cc has
// what the model is shown.
TEST(ToolFormat, OfKimiFollowsFromItsTemplateToo) {
  const ToolFormat* format = tool_format_of(source_of("Kimi-K2-Instruct"));
  ASSERT_NE(format, nullptr);
  EXPECT_STREQ(format->name, "kimi_k2");
}

TEST(ToolFormat, ReadsChannelsAsTheTemplateOfGptOssWritesThem) {
  const ChatTemplateSource source = source_of("openai-gpt-oss-120b");
  const ToolFormat* format = tool_format_of(source);
  ASSERT_NE(format, nullptr);
  EXPECT_STREQ(format->name, "harmony");
  EXPECT_TRUE(has_channels(source) && has_thoughts(source));
  EXPECT_FALSE(has_channels(source_of("Qwen-Qwen2.5-7B-Instruct")));
  const ChatTemplate with(source);
  const std::string prompt = rendered(with, false);
  const std::string begin = "<|start|>assistant";
  const size_t at = prompt.rfind(begin);
  ASSERT_NE(at, std::string::npos) << prompt;
  MessageForm form;
  form.calls = format;
  MessageReader reader(form);
  auto parts = reader.add(prompt.substr(at + begin.size()));
  for (auto& part : reader.finish()) parts.push_back(part);
  ASSERT_EQ(parts.size(), 2u) << prompt.substr(at);
  EXPECT_EQ(parts[0], (MessagePart{MessagePart::Kind::kCall, "add_up", 0})) << prompt.substr(at);
  EXPECT_EQ(ordered_json::parse(parts[1].text), (ordered_json{{"a", 4}, {"b", "x } y"}}));
}

TEST(ToolFormat, KnowsWhichTemplatesSpeakOfThoughts) {
  EXPECT_TRUE(has_thoughts(source_of("deepseek-ai-DeepSeek-R1-Distill-Llama-8B")));
  EXPECT_FALSE(has_thoughts(source_of("Qwen-Qwen2.5-7B-Instruct")));
}

}  // namespace
}  // namespace sluice::chat
