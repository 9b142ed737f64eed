// Manual pages and shell completions: they name every option that --help shows, and the shells that
// are here understand them.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

// The commands that --help lists.
std::vector<std::string> listed_commands() {
  std::vector<std::string> out;
  const std::string help = succeed({"--help"}).out;
  const std::string commands = help.substr(help.find("Subcommands:"));
  const std::regex line("\n  ([a-z-]+) ");
  for (std::sregex_iterator at(commands.begin(), commands.end(), line), end; at != end; ++at)
    out.push_back((*at)[1]);
  return out;
}

// The options that a command's --help begins lines with.
std::set<std::string> listed_options(const std::string& command) {
  std::set<std::string> out;
  const std::string help = succeed({command, "--help"}).out;
  const std::regex line("\n  (-[^ \n]+)");
  for (std::sregex_iterator at(help.begin(), help.end(), line), end; at != end; ++at) {
    const std::string names = (*at)[1];
    const std::regex name("[^,]+");
    for (std::sregex_iterator one(names.begin(), names.end(), name); one != end; ++one)
      out.insert(one->str());
  }
  return out;
}

// A page's text as it is read, without its macros' escapes.
std::string read_page(std::string page) {
  page = std::regex_replace(page, std::regex(R"(\\f[BIR])"), "");
  return std::regex_replace(page, std::regex(R"(\\([-&]))"), "$1");
}

TEST(Interface, EveryCommandHasAPageThatNamesItsOptions) {
  const TemporaryFolder folder;
  const std::string pages = folder.path() + "/made/man1";
  EXPECT_EQ(succeed({"manual", "--all", pages}).out, "");
  const auto commands = listed_commands();
  ASSERT_GT(commands.size(), 20u);
  for (const std::string& command : commands) {
    const std::string page = read_page(read_file(pages + "/sluice-" + command + ".1"));
    EXPECT_NE(page.find("sluice-" + command), std::string::npos) << command;
    const auto options = listed_options(command);
    ASSERT_FALSE(options.empty()) << command;
    for (const std::string& option : options)
      EXPECT_TRUE(std::regex_search(page, std::regex("(^|[\n ,])" + option + "($|[\n ,])")))
          << command << " " << option;
    EXPECT_NE(read_page(read_file(pages + "/sluice.1")).find("sluice-" + command),
              std::string::npos);
  }
  EXPECT_EQ(read_folder(pages).size(), commands.size() + 1);
}

TEST(Interface, APageIsPrinted) {
  const std::string run = succeed({"manual", "run"}).out;
  EXPECT_NE(run.find(".TH SLUICE\\-RUN 1"), std::string::npos);
  EXPECT_NE(run.find("SLUICE_CPU_MEM"), std::string::npos);
  EXPECT_EQ(run.find("\n--"), std::string::npos);
  EXPECT_NE(succeed({"manual"}).out.find(".TH SLUICE 1"), std::string::npos);
  EXPECT_EQ(succeed({"manual", "bench", "serve"}).out, succeed({"manual", "bench-serve"}).out);
  fail({"manual", "rnu"}, 2, {"rnu", "did you mean run?"});
  fail({"manual", "xylophone"}, 2, {"--help lists the commands"});
  fail({"manual", "run", "--all", "x"}, 2, {"--all"});
  fail({"manual", "--all", "/dev/null/pages"}, 3, {"/dev/null/pages"});
}

TEST(Interface, ShellsThatAreNotKnownAreRefused) {
  fail({"completions"}, 2, {"shell"});
  fail({"completions", "tcsh"}, 2, {"tcsh", "bash", "zsh", "fish"});
}

TEST(Interface, VersionIsAnOptionToo) {
  EXPECT_EQ(succeed({"--version"}).out, succeed({"version"}).out);
  EXPECT_EQ(succeed({"-V"}).out, succeed({"version"}).out);
}

// What bash offers for a line of words, the last of which is being typed.
std::string offered(const std::string& words, const std::string& folder) {
  Command::Options bash;
  bash.program = "/bin/bash";
  bash.environment = {"SLUICE=" SLUICE_PROGRAM, "WHERE=" + folder, "LINE=" + words};
  Command command({"--norc", "-c",
                   "cd \"$WHERE\" && . <(\"$SLUICE\" completions bash) && "
                   "IFS='|' read -ra COMP_WORDS <<<\"$LINE|x\" && "
                   "COMP_WORDS=(\"${COMP_WORDS[@]:0:${#COMP_WORDS[@]}-1}\") && "
                   "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && _sluice; echo \"${COMPREPLY[*]}\""},
                  bash);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "") << words;
  return outcome.out;
}

TEST(Interface, BashOffersWhatFits) {
  const TemporaryFolder folder;
  write_file(folder.path() + "/threads.jsonl", "");
  const auto of = [&](const std::string& words) { return offered(words, folder.path()); };
  EXPECT_EQ(of("sluice|tok"), "tokenize\n");
  EXPECT_EQ(of("sluice|bench-l"), "bench-latency\n");
  EXPECT_EQ(of("sluice|--v"), "--version\n");
  EXPECT_EQ(of("sluice|run|--cpu-m"), "--cpu-mem --cpu-memory\n");
  EXPECT_EQ(of("sluice|run|model|--compute|"), "auto f32 bf16\n");
  EXPECT_EQ(of("sluice|run|model|--compute|b"), "bf16\n");
  EXPECT_EQ(of("sluice|run|model|--compute|="), "auto f32 bf16\n");  // as --compute= is cut
  EXPECT_EQ(of("sluice|run|model|--compute|=|f"), "f32\n");
  // A command of two words, and the one that is their first.
  EXPECT_EQ(of("sluice|bench|th"), "throughput threads.jsonl\n");
  EXPECT_EQ(of("sluice|bench|throughput|--reque"), "--requests\n");
  EXPECT_EQ(of("sluice|bench|model|--reque"), "\n");
  // Left to the shell: files.
  EXPECT_EQ(of("sluice|run|th"), "\n");
  EXPECT_EQ(of("sluice|run|--policy|th"), "\n");
  EXPECT_EQ(of("sluice|xylophone|--"), "\n");
}

// Whether a shell is here.
bool has(const std::string& shell) {
  return std::filesystem::exists("/usr/bin/" + shell) || std::filesystem::exists("/bin/" + shell);
}

std::string said_by(const std::string& shell, const std::vector<std::string>& arguments) {
  Command::Options options;
  options.program = (std::filesystem::exists("/usr/bin/" + shell) ? "/usr/bin/" : "/bin/") + shell;
  options.environment = {"SLUICE=" SLUICE_PROGRAM};
  Command command(arguments, options);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

TEST(Interface, FishOffersWhatFits) {
  if (!has("fish")) GTEST_SKIP() << "fish is not installed";
  const auto of = [](const std::string& line) {
    const std::string said = said_by(
        "fish",
        {"--no-config", "-c", "$SLUICE completions fish | source; complete -C '" + line + "'"});
    return std::regex_replace(said, std::regex("\t[^\n]*"), "");
  };
  EXPECT_EQ(of("sluice toke"), "tokenize\n");
  EXPECT_EQ(of("sluice run --cpu-m"), "--cpu-mem\n--cpu-memory\n");
  EXPECT_EQ(of("sluice run model --compute f"), "f32\n");
  EXPECT_EQ(of("sluice bench throughput --reque"), "--requests\n");
  EXPECT_EQ(of("sluice bench model --reque"), "");
}

TEST(Interface, ZshReadsItsScript) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  const std::string said = said_by(
      "zsh", {"-f", "-c",
              "autoload -Uz compinit && compinit -D -u && . <(\"$SLUICE\" completions zsh) && "
              "print -r -- $_comps[sluice] && functions _sluice | grep -c -- --cpu-mem"});
  EXPECT_EQ(said.substr(0, 8), "_sluice\n");
  EXPECT_GT(std::stoi(said.substr(8)), 5);
}

}  // namespace
}  // namespace sluice::testing
