// sluice chat over standard input: turns, their history, commands, errors.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

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

}  // namespace
}  // namespace sluice::testing
