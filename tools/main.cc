// The command line: finds the subcommand, runs it, and turns errors into one message and an exit
// code.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/output.h"

namespace {

using sluice::Error;
using sluice::ErrorKind;

int report(const Error& error) {
  std::fprintf(stderr, "sluice: error: %s\n", error.text().c_str());
  if (!error.mend().empty()) std::fprintf(stderr, "  %s\n", error.mend().c_str());
  return sluice::exit_code(error.kind());
}

// Ctrl-C: the first asks for a clean stop, the second ends at once. A thread takes the signals, so
// nothing is interrupted half-way.
void watch_signals(std::stop_source stop) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([set, stop]() mutable {
    int signal = 0;
    sigwait(&set, &signal);
    std::fprintf(stderr, "\nsluice: stopping (once more to end at once)\n");
    stop.request_stop();
    sigwait(&set, &signal);
    std::_Exit(130);
  }).detach();
}

int run(int argc, char** argv) {
  CLI::App program("sluice: language models bigger than memory", "sluice");
  program.require_subcommand(1);
  program.failure_message(CLI::FailureMessage::help);
  std::vector<sluice::tools::Command> commands;
  for (auto* add :
       {sluice::tools::add_run, sluice::tools::add_batch, sluice::tools::add_chat,
        sluice::tools::add_serve, sluice::tools::add_bench_serve,
        sluice::tools::add_bench_throughput, sluice::tools::add_bench_latency,
        sluice::tools::add_convert, sluice::tools::add_inspect, sluice::tools::add_tokenize,
        sluice::tools::add_synth, sluice::tools::add_logits, sluice::tools::add_bench,
        sluice::tools::add_eval, sluice::tools::add_plan, sluice::tools::add_profile,
        sluice::tools::add_doctor, sluice::tools::add_version})
    commands.push_back(add(program));
  std::vector<std::string> arguments = sluice::tools::normalise_arguments(argc, argv);
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    program.parse(arguments);
  } catch (const CLI::CallForHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return program.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sluice: error: %s\n  sluice COMMAND --help lists the options\n",
                 error.what());
    return 2;
  }
  std::stop_source stop;
  watch_signals(stop);
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
  } catch (const Error& error) {
    return report(error);
  } catch (const std::bad_alloc&) {
    return report(Error(ErrorKind::kResource, "the system gave no more memory",
                        "close other programs or lower --cpu-mem"));
  } catch (const std::exception& error) {
    return report(Error(ErrorKind::kInternal, error.what(),
                        "this is a bug in sluice; please report it with the command"));
  }
}
