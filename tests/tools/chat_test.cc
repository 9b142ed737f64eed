// sluice chat over standard input and in a terminal: turns, their history, commands, Ctrl-C,
// errors.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include "tests/tools/command.h"
#include "tests/tools/terminal.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

class Chat : public ::testing::Test {
 protected:
  // Shows the model only the users' words, so that the story goes on from turn to turn.
  Chat() {
    write_file(folder_.path("t.jinja"),
               "{% for m in messages %}{{ bos_token if loop.first }}{{ m.content }}{% endfor %}");
  }

  Words words(const Words& more = {}) const {
    Words out{"chat",
              "-m",
              fixture_model("stories260k"),
              "--chat-template",
              folder_.path("t.jinja"),
              "-t",
              "1",
              "--temperature",
              "0",
              "-n",
              "8"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  static Command::Options input(const std::string& text) {
    Command::Options options;
    options.input = text;
    return options;
  }
  // In a terminal, with the lines typed kept in the test's own folder.
  Command::Options home() const {
    Command::Options options;
    options.environment = {"TERM=xterm", "XDG_STATE_HOME=" + folder_.path("state"),
                           "HOME=" + folder_.path("home"), "LC_ALL=C"};
    return options;
  }
  std::string history() const { return folder_.path("state") + "/sluice/chat_history"; }
  TemporaryFolder folder_;
};

TEST_F(Chat, EachTurnSeesTheWholeConversation) {
  const std::string one = succeed(words(), input("Once upon a time\n")).out;
  EXPECT_TRUE(one.starts_with(", there was a")) << one;
  const std::string two = succeed(words(), input("Once upon a time\n Then\n")).out;
  EXPECT_TRUE(two.starts_with(one)) << two;
  const std::string fresh = succeed(words(), input(" Then\n")).out;
  EXPECT_NE(two.substr(one.size()), fresh) << "the second turn saw the first";
  const std::string reset =
      succeed(words(), input("Once upon a time\n/reset\n Then\n/exit\nnot read")).out;
  EXPECT_EQ(reset, one + fresh);
}

TEST_F(Chat, SaysWhatIsMissing) {
  fail({"chat", "-m", fixture_model("stories260k")}, 3, {"no chat template", "--chat-template"});
  write_file(folder_.path("t.jinja"), "{{ raise_exception('only questions') }}");
  const Outcome refused = sluice(words(), input("Hello\n"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("only questions"), std::string::npos);
}

TEST_F(Chat, InATerminalLinesAreEditedAndKept) {
  const std::string answer = succeed(words(), input("Once upon a time\n")).out;
  const std::string first_words = answer.substr(0, answer.find('\n'));
  {
    Terminal terminal(words(), home());
    terminal.wait_for("> ");
    terminal.type(
        "xOnce upon time\x01\x1b[3~\x05\x1b[D\x1b[D\x1b[D\x1b[Da \r");  // home, delete, end, left
    terminal.wait_for(first_words);
    terminal.wait_for("> ");
    terminal.type("/reset\r");
    terminal.wait_for("> ");
    terminal.type("Zoë 日本\x7f\x7f\x7f\x7f\x7f\x7f Tom\r");  // the characters go one by one
    terminal.wait_for("> ");
    terminal.type("\x04");
    EXPECT_EQ(terminal.wait(), 0) << terminal.screen();
  }
  EXPECT_EQ(read_file(history()), "Once upon a time\n/reset\n Tom\n");
  struct stat status {};
  ASSERT_EQ(stat(history().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  Terminal again(words(), home());
  again.wait_for("> ");
  again.type("\x1b[A\x1b[A\x1b[A\r");  // three lines up
  again.wait_for(first_words);
  again.wait_for("> ");
  again.type("/exit\r");
  EXPECT_EQ(again.wait(), 0);
}

TEST_F(Chat, CtrlCEndsTheAnswerAndNotTheChat) {
  // A model whose end never comes: the answer fills the context, more than a terminal holds.
  const std::string model = folder_.path("model");
  copy_model("stories260k", model);
  auto config = nlohmann::json::parse(read_file(model + "/config.json"));
  config["eos_token_id"] = 511;
  config["max_position_embeddings"] = 8192;
  write_file(model + "/config.json", config.dump());
  Words long_answer = words({"--ctx-size", "8192"});
  long_answer[2] = model;
  long_answer[std::find(long_answer.begin(), long_answer.end(), "-n") - long_answer.begin() + 1] =
      "8000";
  Terminal terminal(long_answer, home());
  terminal.wait_for("> ");
  terminal.type("Once upon a time\r");
  terminal.wait_for("there was");
  terminal.type("\x03");
  const std::string rest = terminal.wait_for("> ");
  EXPECT_LT(rest.size(), 16000u) << "the answer went on to its end";
  EXPECT_FALSE(terminal.echoes()) << "the prompt shows before the editor has the terminal";
  terminal.type("\x03");  // an impatient one leaves nothing
  terminal.wait_for("once more");
  terminal.wait_for("> ");
  terminal.type("not sent");
  terminal.wait_for("sent");  // the terminal drops what is not read yet when Ctrl-C comes
  terminal.type("\x03");
  terminal.wait_for("> ");
  terminal.type("/reset\r");
  terminal.wait_for("> ");
  terminal.type("\x03");
  terminal.wait_for("once more");
  terminal.wait_for("> ");
  terminal.type("\x03");
  EXPECT_EQ(terminal.wait(), 0) << terminal.screen();
  EXPECT_EQ(read_file(history()), "Once upon a time\n/reset\n");
}

TEST_F(Chat, WithoutATerminalOrAFolderForItNothingIsKept) {
  succeed(words(), [&] {
    Command::Options options = home();
    options.input = "Once\n";
    return options;
  }());
  Terminal none(words({"--no-history"}), home());
  none.wait_for("> ");
  none.type("/reset\r");
  none.wait_for("> ");
  none.type("/exit\r");
  EXPECT_EQ(none.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("state")));
  write_file(folder_.path("state"), "a file where the folder would be");
  Terminal refused(words(), home());
  refused.wait_for("not kept");
  refused.wait_for("> ");
  refused.type("/exit\r");
  EXPECT_EQ(refused.wait(), 0);
}

// A template whose prompt begins a thought, and a model that never ends it.
TEST_F(Chat, ThoughtsAreFaintInATerminalAndNotInAPipe) {
  const std::string answer = succeed(words(), input("Once upon a time\n")).out;
  const std::string first_words = answer.substr(0, answer.find('\n'));
  write_file(folder_.path("t.jinja"),
             "{% for m in messages %}{{ bos_token if loop.first }}{{ m.content }}{% endfor %}"
             "{# <think> #}");
  const std::string open = folder_.path("open.jinja");
  write_file(open,
             "{% for m in messages %}{{ bos_token if loop.first }}{{ m.content }}{% endfor %}"
             "<think>");
  EXPECT_EQ(succeed(words(), input("Once upon a time\n")).out, answer) << "it thinks nothing";
  Words thinking = words();
  thinking[4] = open;
  const std::string hidden = succeed(thinking, input("Once upon a time\n")).out;
  EXPECT_EQ(hidden, "\n");
  Terminal terminal(thinking, home());
  terminal.wait_for("> ");
  terminal.type("Once upon a time\r");
  terminal.wait_for("\x1b[2m");
  terminal.wait_for("\x1b[0m");
  terminal.wait_for("> ");
  terminal.type("/exit\r");
  EXPECT_EQ(terminal.wait(), 0) << terminal.screen();
}

TEST_F(Chat, AStopEndsItAtThePrompt) {
  Terminal terminal(words(), home());
  terminal.wait_for("> ");
  kill(terminal.pid(), SIGTERM);
  EXPECT_EQ(terminal.wait(), 0) << terminal.screen();
}

}  // namespace
}  // namespace sluice::testing
