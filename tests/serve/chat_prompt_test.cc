// From a chat to the model's prompt: an answer that goes on with the last message, held against
// what transformers 5.24 makes of the same templates (apply_chat_template); a request's own
// template; documents.
#include "src/serve/chat_prompt.h"

#include <gtest/gtest.h>

#include "tests/engine/model_fixtures.h"

namespace sluice::serve {
namespace {

constexpr const char* kTrims =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor "
    "%}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr const char* kKeeps =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}";

chat::ChatTemplate with_text(const std::string& text) {
  chat::ChatTemplateSource source;
  source.text = text;
  source.origin = "test";
  return chat::ChatTemplate(std::move(source));
}

const text::Tokenizer& stories_tokenizer() {
  static const auto loaded = text::Tokenizer::load(testing::fixture_model("stories260k"));
  return *loaded;
}

ChatPrompt prompt_of(const nlohmann::ordered_json& body, const std::string& text,
                     bool splits_thoughts = false) {
  const chat::ChatTemplate chat = with_text(text);
  return chat_prompt(parse_chat(body.dump(), {}, 512), &chat, stories_tokenizer(), nullptr,
                     splits_thoughts);
}

nlohmann::ordered_json chat_ending_in(const nlohmann::ordered_json& last) {
  return {{"messages",
           {{{"role", "user"}, {"content", "a tale"}}, {{"role", "assistant"}, {"content", last}}}},
          {"continue_final_message", true}};
}

TEST(ChatPrompt, GoesOnWithTheLastMessage) {
  const std::string before = "<|im_start|>user\na tale<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt_of(chat_ending_in("Once upon"), kTrims).text, before + "Once upon");
  EXPECT_EQ(prompt_of(chat_ending_in("  Once upon a \n"), kTrims).text, before + "Once upon a");
  EXPECT_EQ(prompt_of(chat_ending_in("Once upon"), kKeeps).text,
            "[user] a tale</s>[assistant] Once upon");
  EXPECT_EQ(prompt_of(chat_ending_in("  Once upon a \n"), kKeeps).text,
            "[user] a tale</s>[assistant]   Once upon a \n");
  const nlohmann::ordered_json parts{{{"type", "text"}, {"text", "Once"}},
                                     {{"type", "text"}, {"text", "upon"}}};
  EXPECT_EQ(prompt_of(chat_ending_in(parts), kTrims).text, before + "Once\nupon");
  // Words that the template writes too, and that came before.
  EXPECT_EQ(prompt_of(chat_ending_in("im_end"), kTrims).text, before + "im_end");
  EXPECT_EQ(prompt_of(chat_ending_in("a tale"), kTrims).text, before + "a tale");
  EXPECT_EQ(prompt_of(chat_ending_in(">"), kTrims).text, before + ">");
}

TEST(ChatPrompt, ATemplateThatChangesTheLastMessageIsRefused) {
  try {
    prompt_of(chat_ending_in("Once"), "{% for m in messages %}{{ m.content | upper }}{% endfor %}");
    FAIL() << "it was taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.param, "continue_final_message");
  }
}

TEST(ChatPrompt, AThoughtThatWasBegunGoesOn) {
  EXPECT_TRUE(prompt_of(chat_ending_in("<think>so"), kKeeps, true).form.begins_in_thought);
  EXPECT_FALSE(
      prompt_of(chat_ending_in("<think>so</think>It"), kKeeps, true).form.begins_in_thought);
  EXPECT_FALSE(prompt_of(chat_ending_in("It"), kKeeps, true).form.begins_in_thought);
}

// As gpt-oss has them, shortened.
constexpr const char* kChannels =
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>"
    "{{ m.thinking }}<|end|><|start|>assistant{% endif %}{% if m.role == 'assistant' %}<|channel|>"
    "final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}{% if tools %}{{ tools | length "
    "}}"
    "{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    "{# <|channel|>final<|message|> #}";

TEST(ChatPrompt, AnswersInChannelsAreReadAsSuch) {
  const nlohmann::ordered_json turns{
      {{"role", "user"}, {"content", "hi"}},
      {{"role", "assistant"}, {"content", "yes"}, {"reasoning_content", "hm"}},
      {{"role", "user"}, {"content", "so?"}}};
  const std::string text =
      "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
      "<|start|>assistant<|channel|>final<|message|>yes<|end|><|start|>user<|message|>so?<|end|>";
  const ChatPrompt plain = prompt_of({{"messages", turns}}, kChannels, true);
  EXPECT_EQ(plain.text, text + "<|start|>assistant");
  EXPECT_TRUE(plain.form.has_channels && plain.form.has_thoughts && plain.keeps_special);
  // A guided answer is the text of one channel, and so is what goes on with the last message.
  const ChatPrompt guided =
      prompt_of({{"messages", turns}, {"guided_regex", "a+"}}, kChannels, true);
  EXPECT_EQ(guided.text, text + "<|start|>assistant<|channel|>final<|message|>");
  EXPECT_FALSE(guided.form.has_channels || guided.keeps_special);
  const ChatPrompt going_on = prompt_of(chat_ending_in("Once upon"), kChannels, true);
  EXPECT_TRUE(going_on.text.ends_with("<|channel|>final<|message|>Once upon")) << going_on.text;
  EXPECT_FALSE(going_on.form.has_channels);
}

TEST(ChatPrompt, ACallThatMustComeIsBegunInItsChannel) {
  const nlohmann::ordered_json body{
      {"messages", {{{"role", "user"}, {"content", "hi"}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "now"}}}}}},
      {"tool_choice", "required"}};
  const chat::ChatTemplate chat = with_text(kChannels);
  const chat::ToolFormat* format = chat::tool_format_of(chat.source());
  ASSERT_NE(format, nullptr);
  const ChatPrompt prompt =
      chat_prompt(parse_chat(body.dump(), {}, 512), &chat, stories_tokenizer(), format, true);
  EXPECT_TRUE(prompt.text.ends_with("<|start|>assistant<|channel|>commentary to=functions."))
      << prompt.text;
  chat::MessageReader reader(prompt.form);
  const auto parts = reader.add("now <|constrain|>json<|message|>{}");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].text, "now");
  EXPECT_EQ(parts[1].text, "{}");
  EXPECT_EQ(reader.calls(), 1);
}

// Where calls have numbers, an answer's go on behind those of earlier turns, whose ids become such.
TEST(ChatPrompt, CallsGoOnBehindTheNumbersOfEarlierTurns) {
  const auto call = [](const char* id) {
    return nlohmann::ordered_json{
        {"id", id}, {"type", "function"}, {"function", {{"name", "now"}, {"arguments", "{}"}}}};
  };
  const nlohmann::ordered_json body{
      {"messages",
       {{{"role", "user"}, {"content", "hi"}},
        {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call("one"), call("two")}}},
        {{"role", "tool"}, {"tool_call_id", "two"}, {"content", "b"}},
        {{"role", "tool"}, {"tool_call_id", "one"}, {"content", "a"}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "now"}}}}}},
      {"tool_choice", "required"}};
  const chat::ChatTemplate chat = with_text(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}<{{ c.id }}>{% endfor %}{% if "
      "m.role == 'tool' %}{{ m.tool_call_id }}={{ m.content }};{% endif %}{% endfor %}{{ tools | "
      "length }}");
  const auto prompt = [&](const char* format) {
    return chat_prompt(parse_chat(body.dump(), {}, 512), &chat, stories_tokenizer(),
                       chat::find_tool_format(format), false);
  };
  const ChatPrompt numbered = prompt("kimi_k2");
  EXPECT_EQ(numbered.text,
            "<functions.now:0><functions.now:1>functions.now:0=a;functions.now:1=b;1"
            "<|tool_calls_section_begin|>");
  EXPECT_EQ(numbered.form.calls_before, 2);
  const ChatPrompt plain = prompt("hermes");
  EXPECT_EQ(plain.text, "<one><two>two=b;one=a;1<tool_call>");
  EXPECT_EQ(plain.form.calls_before, 0);
}

TEST(ChatPrompt, ARequestBringsItsOwnTemplate) {
  nlohmann::ordered_json body{{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                              {"chat_template", "<{{ messages[0].content }}>"}};
  EXPECT_EQ(prompt_of(body, kTrims).text, "<hi>");
  // A model without a template takes it too.
  EXPECT_EQ(
      chat_prompt(parse_chat(body.dump(), {}, 512), nullptr, stories_tokenizer(), nullptr, false)
          .text,
      "<hi>");
  for (const char* broken : {"{% for", "{{ 1 + }}", "{% include 'x' %}"}) {
    body["chat_template"] = broken;
    try {
      prompt_of(body, kTrims);
      FAIL() << broken;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param, "chat_template") << error.message;
    }
  }
}

TEST(ChatPrompt, DocumentsAreShownOrRefused) {
  const nlohmann::ordered_json body{{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                                    {"documents", {{{"title", "t"}, {"text", "x"}}}}};
  EXPECT_EQ(prompt_of(body, "{% for d in documents %}{{ d.title }}={{ d.text }};{% endfor %}").text,
            "t=x;");
  try {
    prompt_of(body, kTrims);
    FAIL() << "they were ignored";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.param, "documents");
    EXPECT_EQ(error.code, "unsupported");
  }
}

}  // namespace
}  // namespace sluice::serve
