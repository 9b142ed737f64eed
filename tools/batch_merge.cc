// sluice batch merge: the results files of a job's shards become one, in the input's order.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/jobs/merge.h"
#include "src/jobs/results_file.h"
#include "src/jobs/shard.h"
#include "tools/batch_files.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct MergeFlags {
  std::string output, input;
  std::vector<std::string> shards;
  bool is_partial = false, json = false;
};

// The files to merge: those named, or the job's that lie beside its output; the output's own too.
std::vector<std::string> sources_of(const MergeFlags& flags) {
  std::vector<std::string> out = flags.shards;
  for (const jobs::JobFile& file : jobs::job_files(flags.output)) {
    const bool is_output = file.path == flags.output;
    const bool is_named = std::find(out.begin(), out.end(), file.path) != out.end();
    if (!is_named && (is_output || flags.shards.empty())) out.push_back(file.path);
  }
  if (out.empty())
    throw Error(
        ErrorKind::kUser,
        fmt::format("nothing to merge: there is no {0} and no {0}.shard-0-of-...", flags.output),
        "name the shards' files");
  return out;
}

void run(const MergeFlags& flags) {
  const BatchInput from(flags.input);
  const std::vector<std::string> sources = sources_of(flags);
  std::ifstream input(from.path());
  const jobs::MergeReport report = [&] {
    const Waiting waiting("merging");
    return jobs::merge_results(input, from.name(), sources, flags.output,
                               flags.is_partial ? jobs::Missing::kAllow : jobs::Missing::kRefuse);
  }();
  if (flags.json)
    return print_json({{"rows", report.rows},
                       {"answers", report.answers},
                       {"errors", report.errors},
                       {"missing", report.missing},
                       {"doubled", report.doubled},
                       {"sources", sources},
                       {"output", flags.output}});
  for (const std::string& row : report.first_missing)
    std::fprintf(stderr, "  no record: %s\n", row.c_str());
  std::fputs(fmt::format("  {} rows: {} answers, {} error records, {} missing; {} records were "
                         "there twice and alike: {}\n",
                         report.rows, report.answers, report.errors, report.missing, report.doubled,
                         flags.output)
                 .c_str(),
             stderr);
}
}  // namespace

Command add_batch_merge(CLI::App& program) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* parser = program.add_subcommand(
      "batch-merge", "put the files of a job's shards together (also: batch merge)");
  parser->add_option("output", flags->output, "the job's output, written anew")->required();
  parser->add_option("shards", flags->shards,
                     "files to merge (default: those beside the output: OUTPUT.shard-0-of-3, ...)");
  parser
      ->add_option("-i,--input", flags->input,
                   "the job's input: whose rows, in which order; - for standard input")
      ->required();
  parser->add_flag("--partial", flags->is_partial, "write what is there where rows are missing");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](std::stop_token) { run(*flags); }};
}

}  // namespace sluice::tools
