#pragma once
// A subcommand: adds its options to the program's parser and leaves a function that runs it. One
// file each; main.cc lists them. Standard output is for results, standard error for everything
// else.
#include <CLI/CLI.hpp>
#include <functional>
#include <stop_token>

namespace sluice::tools {

struct Command {
  CLI::App* parser = nullptr;
  std::function<void(std::stop_token)> run;
};

/// Each adds its subcommand with its flags.
Command add_run(CLI::App& program);
Command add_batch(CLI::App& program);
Command add_batch_merge(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_synth(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_chat(CLI::App& program);
Command add_serve(CLI::App& program);
Command add_bench_serve(CLI::App& program);
Command add_bench_throughput(CLI::App& program);
Command add_bench_latency(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_profile(CLI::App& program);
Command add_doctor(CLI::App& program);
Command add_models(CLI::App& program);
Command add_routing(CLI::App& program);
Command add_version(CLI::App& program);

}  // namespace sluice::tools
