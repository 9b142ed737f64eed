// The command line: finds the subcommand, runs it, and turns errors into one message and an exit
// code.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "src/base/system_error.h"
#include "tools/command.h"
#include "tools/flag_words.h"
#include "tools/interface.h"
#include "tools/interrupts.h"
#include "tools/nearest.h"
#include "tools/output.h"
#include "tools/spellings.h"

namespace {

using sluice::Error;
using sluice::ErrorKind;

int report(const Error& error) {
  std::fprintf(stderr, "%ssluice: error: %s\n", sluice::tools::message_start(),
               sluice::tools::in_flags(error.text()).c_str());
  if (!error.mend().empty())
    std::fprintf(stderr, "  %s\n", sluice::tools::in_flags(error.mend()).c_str());
  return sluice::exit_code(error.kind());
}

// "did you mean run? ", for a command or an option that nobody knows but that is near one; else
// empty.
std::string meant(const CLI::App& program, int argc, char** argv) {
  std::vector<std::string> words = sluice::tools::normalise_arguments(argc, argv);
  if (words.empty()) return {};
  std::vector<std::string> known;
  const CLI::App* command = nullptr;
  for (const CLI::App* one : program.get_subcommands({})) {
    known.push_back(one->get_name());
    if (one->get_name() == words.front()) command = one;
  }
  std::string asked = words.front();
  if (command) {
    known.clear();
    for (const CLI::Option* option : command->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    asked.clear();  // the first option of the line that the command has not
    for (const std::string& word : words) {
      const std::string name = word.substr(0, word.find('='));
      const bool is_unknown =
          name.starts_with("--") && std::find(known.begin(), known.end(), name) == known.end();
      if (asked.empty() && is_unknown) asked = name;
    }
  }
  const auto found = sluice::tools::nearest(asked, known);
  return found ? "did you mean " + *found + "? " : std::string();
}

int run(int argc, char** argv) {
  CLI::App program("sluice: language models bigger than memory", "sluice");
  program.require_subcommand(1);
  program.failure_message(CLI::FailureMessage::help);
  program.set_version_flag("-V,--version", "sluice " SLUICE_VERSION, "print the version and exit");
  std::vector<sluice::tools::Command> commands;
  for (auto* add : {sluice::tools::add_run,
                    sluice::tools::add_batch,
                    sluice::tools::add_batch_merge,
                    sluice::tools::add_chat,
                    sluice::tools::add_serve,
                    sluice::tools::add_bench_serve,
                    sluice::tools::add_bench_throughput,
                    sluice::tools::add_bench_latency,
                    sluice::tools::add_convert,
                    sluice::tools::add_inspect,
                    sluice::tools::add_tokenize,
                    sluice::tools::add_synth,
                    sluice::tools::add_logits,
                    sluice::tools::add_bench,
                    sluice::tools::add_eval,
                    sluice::tools::add_models,
                    sluice::tools::add_routing,
                    sluice::tools::add_plan,
                    sluice::tools::add_profile,
                    sluice::tools::add_doctor,
                    sluice::tools::add_completions,
                    sluice::tools::add_manual,
                    sluice::tools::add_version})
    commands.push_back(add(program));
  std::vector<std::string> arguments = sluice::tools::normalise_arguments(argc, argv);
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    program.parse(arguments);
  } catch (const CLI::CallForHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return program.exit(version);
  } catch (const CLI::ParseError& error) {
    const std::string word = argc > 1 ? argv[1] : "";
    const bool is_word = !word.empty() && word.front() != '-' && program.get_subcommands().empty();
    std::fprintf(stderr, "sluice: error: %s\n  %ssluice %s\n",
                 is_word ? ("\"" + word + "\" is no command").c_str() : error.what(),
                 meant(program, argc, argv).c_str(),
                 is_word ? "--help lists the commands" : "COMMAND --help lists the options");
    return 2;
  }
  std::stop_source stop;
  sluice::tools::watch_signals(stop);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  for (const sluice::tools::Command& command : commands)
    if (command.parser->parsed()) command.run(stop.get_token());
  sluice::tools::check_output();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (...) {
    return report(sluice::current_error());
  }
}
