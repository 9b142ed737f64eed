// Answers of `sluice chat` as they are shown, in whatever pieces they come.
#include "tools/shown_answer.h"

#include <gtest/gtest.h>

#include "src/chat/tool_format.h"

namespace sluice::tools {
namespace {

struct Shown {
  std::string screen, kept;
  bool operator==(const Shown&) const = default;
};

Shown show_in_pieces(const chat::MessageForm& form, ShownAnswer::Thoughts thoughts,
                     const std::string& answer, size_t piece) {
  ShownAnswer shown(form, thoughts);
  Shown out;
  for (size_t at = 0; at < answer.size(); at += piece)
    out.screen += shown.add(std::string_view(answer).substr(at, piece));
  out.screen += shown.finish();
  out.kept = shown.text();
  return out;
}

void expect_shown(const chat::MessageForm& form, const std::string& answer,
                  const std::string& in_terminal, const std::string& elsewhere) {
  for (size_t piece = 1; piece <= answer.size() + 1; ++piece) {
    SCOPED_TRACE("pieces of " + std::to_string(piece));
    EXPECT_EQ(show_in_pieces(form, ShownAnswer::Thoughts::kFaint, answer, piece),
              (Shown{in_terminal, elsewhere}));
    EXPECT_EQ(show_in_pieces(form, ShownAnswer::Thoughts::kHidden, answer, piece),
              (Shown{elsewhere, elsewhere}));
  }
}

TEST(ShownAnswer, PlainTextIsItself) {
  expect_shown({}, "Hello <think>x</think>", "Hello <think>x</think>", "Hello <think>x</think>");
  expect_shown({}, "", "", "");
}

TEST(ShownAnswer, ThoughtsAreFaintOrHidden) {
  chat::MessageForm form;
  form.has_thoughts = true;
  expect_shown(form, "<think>Hm.</think>Yes.", "\x1b[2mHm.\x1b[0m\n\nYes.", "Yes.");
  expect_shown(form, "Yes.", "Yes.", "Yes.");
  form.begins_in_thought = true;
  expect_shown(form, "Hm.</think>Yes.", "\x1b[2mHm.\x1b[0m\n\nYes.", "Yes.");
  expect_shown(form, "Hm, and no end", "\x1b[2mHm, and no end\x1b[0m", "");
}

TEST(ShownAnswer, OfChannelsNoMarkIsLeft) {
  chat::MessageForm form;
  form.has_thoughts = true;
  form.has_channels = true;
  form.calls = chat::find_tool_format("harmony");
  ASSERT_NE(form.calls, nullptr);
  expect_shown(form,
               "<|channel|>analysis<|message|>User asks.<|end|><|start|>assistant<|channel|>final"
               "<|message|>It is 4.",
               "\x1b[2mUser asks.\x1b[0m\n\nIt is 4.", "It is 4.");
  expect_shown(form,
               "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>"
               "commentary to=functions.find <|constrain|>json<|message|>{\"a\": 1}",
               "\x1b[2mLook it up.\x1b[0m\n\n[calls find {\"a\": 1}]", "[calls find {\"a\": 1}]");
}

}  // namespace
}  // namespace sluice::tools
