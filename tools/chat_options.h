#pragma once
// What chat and serve share: the model's chat template and its own defaults of sampling.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "src/chat/chat_template.h"
#include "src/sampling/params.h"
#include "src/text/tokenizer.h"

namespace sluice::tools {

struct ChatOptions {
  std::string chat_template;
  std::string generation_config = "auto";

  enum class Has { kBoth, kTemplateOnly };
  void add_to(CLI::App& parser, const char* group, Has has = Has::kBoth);
  /// Null when neither the model nor the command line has a template. Errors: kFile.
  std::unique_ptr<chat::ChatTemplate> load_template(const std::string& model,
                                                    const text::Tokenizer& tokenizer) const;
  /// The sampling fields of generation_config.json, as vLLM takes them for what requests leave out.
  /// Errors: kFile, kUser (out of range).
  sampling::SamplingParams defaults(const std::string& model) const;
};

/// "opt-30b" however the path was typed: opt-30b, ./opt-30b/, or . from inside.
std::string model_name(const std::string& path);

}  // namespace sluice::tools
