#pragma once
// The options of text generation that run and batch share.
#include <CLI/CLI.hpp>

#include "src/sampling/params.h"

namespace sluice::tools {

struct SamplingFlags {
  sampling::SamplingParams params;
  uint64_t seed = 0;
  std::string schema, schema_file, regex;  ///< of guided output
  std::vector<std::string> choices;
  bool is_json = false;
  std::string early_stopping = "false";

  /// Default: greedy, `max_tokens` tokens.
  void add_to(CLI::App& parser, int max_tokens);
  /// Errors: kUser naming the field that is out of range; kFile (schema).
  sampling::SamplingParams checked() const;

 private:
  CLI::Option* seed_option_ = nullptr;
};

}  // namespace sluice::tools
