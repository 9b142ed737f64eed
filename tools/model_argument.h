#pragma once
// The model that a command is given: a path, or the name of one that another program has fetched.
#include <CLI/CLI.hpp>
#include <string>

#include "src/app/local_models.h"

namespace sluice::tools {

/// Where this user's programs keep models, from the environment: HF_HUB_CACHE, HF_HOME,
/// OLLAMA_MODELS, XDG_CACHE_HOME, HOME.
app::ModelFolders model_folders();

/// Whether names of built-in shapes stay what they are.
enum class BuiltInNames { kNo, kYes };
/// An option whose value may be a model's name: it becomes the path. What is neither stays as it
/// is.
CLI::Option* take_model_names(CLI::Option* option, BuiltInNames built_in = BuiltInNames::kNo);
/// The option "model,-m,--model" (also SLUICE_MODEL), which does.
CLI::Option* add_model_option(CLI::App& parser, std::string& model, const std::string& description,
                              BuiltInNames built_in = BuiltInNames::kNo);

/// The option "--pretokenizer": by which rule a GGUF file's text is cut.
void add_pretokenizer_option(CLI::App& parser, std::string& pretokenizer);
/// The option "--kv-dtype": how K and V are kept.
CLI::Option* add_kv_dtype_option(CLI::App& parser, std::string& kv_dtype);

}  // namespace sluice::tools
