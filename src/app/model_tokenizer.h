#pragma once
// A model's tokenizer: from the files beside its weights, else from within them (GGUF).
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "io/convert/convert.h"
#include "src/base/error.h"
#include "src/model/bound_model.h"
#include "src/text/tokenizer.h"

namespace sluice::app {

/// The folder of a model that is a folder or a file of weights.
std::filesystem::path model_folder(const std::filesystem::path& model);

/// Of a model folder or a file of weights; null when it has none. `pretokenizer` names the rule by
/// which a GGUF file's text is cut (src/text/split_rules.h); empty: the file says. Errors: kFile
/// with path, field and what to do, also for kinds of tokenizers in GGUF files that are not read;
/// kUser for a `pretokenizer` that is not known or has no effect.
std::unique_ptr<text::Tokenizer> find_tokenizer(const std::filesystem::path& model,
                                                const std::string& pretokenizer = {});
/// The same; kFile when it has none. A tokenizer's own file will do, too.
std::unique_ptr<text::Tokenizer> need_tokenizer(const std::filesystem::path& model,
                                                const std::string& pretokenizer = {});

/// What tokenizer_config.json would say, chat template included, of a GGUF file that has a
/// tokenizer; else empty.
std::string gguf_tokenizer_config(const std::filesystem::path& model);

/// Adds to a store of a GGUF file what the file says of the model and its text, as config.json and
/// a tokenizer's files; a tokenizer beside the file is better. `pretokenizer`: as above.
/// `no_tokenizer` is told where the file's kind is not read; empty: that is an error (kFile).
void add_gguf_files(const BoundModel& model, io::ConvertOptions& options,
                    const std::string& pretokenizer = {},
                    const std::function<void(const Error&)>& no_tokenizer = {});

}  // namespace sluice::app
