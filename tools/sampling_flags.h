#pragma once
// The options of text generation that run and batch share.
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/sampling/params.h"

namespace sluice::tools {

/// Filters beyond top-k, top-p and min-p, as they are given: what is not leaves what was there.
struct FilterFlags {
  std::optional<float> typical_p, top_n_sigma, xtc_probability, xtc_threshold;
  std::optional<int> mirostat;
  std::optional<float> mirostat_tau, mirostat_eta;
  std::optional<float> dry_multiplier, dry_base;
  std::optional<int> dry_allowed_length, dry_penalty_last_n;
  std::optional<std::vector<std::string>> dry_sequence_breakers;

  void add_to(CLI::App& parser);
  void apply(sampling::SamplingParams& params) const;
};

struct SamplingFlags {
  sampling::SamplingParams params;
  uint64_t seed = 0;
  std::string schema, schema_file, regex, grammar, grammar_file;  ///< of guided output
  std::vector<std::string> choices;
  bool is_json = false;
  std::string early_stopping = "false";
  FilterFlags filters;

  /// Default: greedy, `max_tokens` tokens.
  void add_to(CLI::App& parser, int max_tokens);
  /// Errors: kUser naming the field that is out of range; kFile (schema).
  sampling::SamplingParams checked() const;

 private:
  void add_guides_to(CLI::App& parser);

  CLI::Option* seed_option_ = nullptr;
};

}  // namespace sluice::tools
