// What commands say while one waits, in a terminal and on a log. The emulated device makes a tiny
// model slow enough to be waited for.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tests/tools/command.h"
#include "tests/tools/terminal.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

const std::string kSlow = "emulated:mem=64MiB,flops=3e7";

// About two seconds of prompt.
std::string long_prompt() {
  std::string out;
  for (int i = 0; i < 12; ++i) out += "Once upon a time there was a little girl. ";
  return out;
}

Words slow(const Words& command) {
  Words out = command;
  for (const char* word :
       {"--device", kSlow.c_str(), "--percent", "100", "0", "100", "0", "100", "0", "-t", "1"})
    out.emplace_back(word);
  return out;
}

// The lines that stand on the screen in the end: what a carriage return and "erase the rest of the
// line" leave.
Words lines_left(const std::string& written) {
  Words out(1);
  size_t column = 0;
  for (size_t i = 0; i < written.size(); ++i) {
    std::string& line = out.back();
    if (written[i] == '\r') {
      column = 0;
    } else if (written[i] == '\n') {
      out.emplace_back();
      column = 0;
    } else if (written.compare(i, 3, "\x1b[K") == 0) {
      line.resize(std::min(line.size(), column));
      i += 2;
    } else {
      line.resize(std::max(line.size(), column + 1), ' ');
      line[column++] = written[i];
    }
  }
  return out;
}

bool has_line(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

TEST(ProgressLines, OfAPromptGoWhenTheAnswerComes) {
  Terminal terminal(slow({"run", fixture_model("stories260k"), "-p", long_prompt(), "-n", "4"}));
  EXPECT_EQ(terminal.wait(), 0);
  const std::string& screen = terminal.screen();
  EXPECT_TRUE(has_line(screen, R"(prompt: \d+ of 146 tokens, [0-9.]+ tokens/s, [0-9.ms]+ left)"))
      << screen;
  const Words left = lines_left(screen);
  for (const std::string& line : left) EXPECT_EQ(line.find("prompt:"), std::string::npos) << screen;
  EXPECT_NE(std::find(left.begin(), left.end(), "Every day,"), left.end()) << screen;
}

TEST(ProgressLines, StandByThemselvesOnALog) {
  const Outcome run =
      succeed(slow({"run", fixture_model("stories260k"), "-p", long_prompt(), "-n", "4"}));
  EXPECT_TRUE(has_line(run.err, R"((^|\n)sluice: prompt: \d+ of 146 tokens, .* left\n)"))
      << run.err;
  EXPECT_EQ(run.err.find('\x1b'), std::string::npos) << run.err;
  EXPECT_EQ(run.out, "Every day,\n");
}

TEST(ProgressLines, OfSeveralPromptsCountAnswersToo) {
  const Outcome run = succeed(slow({"run", fixture_model("stories260k"), "--prompt-ids", "1,5,9",
                                    "--prompt-ids", "1,7", "-n", "60", "--ignore-eos"}));
  EXPECT_TRUE(has_line(run.err, R"(sluice: answer: \d+ of 120 tokens)")) << run.err;
}

TEST(ProgressLines, OfABatchSayWhichPassRuns) {
  const TemporaryFolder folder;
  write_file(folder.path("in.jsonl"), "{\"prompt\": \"" + long_prompt() + "\"}\n");
  const Outcome run = succeed(slow({"batch", fixture_model("stories260k"), folder.path("in.jsonl"),
                                    "-o", folder.path("out.jsonl"), "-n", "4"}));
  EXPECT_TRUE(has_line(run.err, R"(sluice: batch: 0/1 requests.*, pass \d+ at \d+ %)")) << run.err;
}

TEST(ProgressLines, OfScoresAndLogitsCountTokens) {
  const TemporaryFolder folder;
  const Outcome logits = succeed(slow(
      {"logits", fixture_model("stories260k"), "-p", long_prompt(), "-o", folder.path("x.npy")}));
  EXPECT_TRUE(has_line(logits.err, R"(sluice: prompt: \d+ of 146 tokens)")) << logits.err;
  write_file(folder.path("t.txt"), long_prompt());
  const Outcome eval =
      succeed(slow({"eval", fixture_model("stories260k"), "--text", folder.path("t.txt")}));
  EXPECT_TRUE(has_line(eval.err, R"(sluice: scored prompt: \d+ of \d+ tokens)")) << eval.err;
}

TEST(ProgressLines, OfAChatGoBeforeTheAnswer) {
  const TemporaryFolder folder;
  write_file(folder.path("t.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}");
  Command::Options home;
  home.environment = {"TERM=xterm", "XDG_STATE_HOME=" + folder.path("state"),
                      "HOME=" + folder.path("home"), "LC_ALL=C"};
  Terminal terminal(slow({"chat", fixture_model("stories260k"), "--chat-template",
                          folder.path("t.jinja"), "--temperature", "0", "-n", "4"}),
                    home);
  terminal.wait_for("> ");
  terminal.type(long_prompt() + "\r");
  terminal.wait_for("prompt: ");
  terminal.wait_for("> ");
  terminal.type("/exit\r");
  EXPECT_EQ(terminal.wait(), 0);
  for (const std::string& line : lines_left(terminal.screen()))
    EXPECT_EQ(line.find("prompt:"), std::string::npos) << terminal.screen();
}

}  // namespace
}  // namespace sluice::testing
