#pragma once
// What chat and serve share: the model's chat template and its own defaults of sampling.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "src/chat/chat_template.h"
#include "src/sampling/params.h"
#include "src/serve/job_line.h"
#include "src/text/tokenizer.h"
#include "tools/engine_flags.h"

namespace sluice::tools {

struct ChatOptions {
  std::string chat_template;
  std::string generation_config = "auto";
  std::string tool_format = "auto", thoughts = "auto";

  enum class Has { kBoth, kTemplateOnly };
  void add_to(CLI::App& parser, const char* group, Has has = Has::kBoth);
  /// How answers are read: --tool-call-parser and --reasoning-parser.
  void add_reading_to(CLI::App& parser, const char* group);
  /// What the flags and the template (may be null) say of that.
  serve::ChatStyle style(const chat::ChatTemplate* chat) const;
  /// Null when neither the model nor the command line has a template. Errors: kFile.
  std::unique_ptr<chat::ChatTemplate> load_template(const std::string& model,
                                                    const text::Tokenizer& tokenizer) const;
  /// The sampling fields of generation_config.json, as vLLM takes them for what requests leave out.
  /// Errors: kFile, kUser (out of range).
  sampling::SamplingParams defaults(const std::string& model) const;
};

/// Flags for a model that answers people: in memory wherever it fits, a context of 4096 tokens (or
/// the model's) where none is given.
EngineFlags serving_flags(const EngineFlags& flags);
/// Prompts go in chunks of so many tokens, unless a policy by hand says otherwise.
void limit_pass(EngineOptions& options, int64_t tokens);

/// All that decides the answers to batch lines beside the lines: model, template, how they are
/// read, and whether their sums are their own.
std::string answers_key(const std::string& model_name, const BoundModel& model,
                        const chat::ChatTemplate* chat, const ChatOptions& options,
                        const EngineFlags& engine);

/// "opt-30b" however the path was typed: opt-30b, ./opt-30b/, or . from inside.
std::string model_name(const std::string& path);

}  // namespace sluice::tools
