// The tokenizer inside a GGUF file: refused as a file error, or files that make a tokenizer.
#include <nlohmann/json.hpp>

#include "io/checkpoint/gguf.h"
#include "src/app/gguf_tokenizer.h"
#include "src/base/error.h"
#include "tests/fuzz/token_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::fuzz::Folder folder;
  try {
    const auto header =
        sluice::io::read_gguf_header(folder.write("x.gguf", sluice::fuzz::text_of(data, size)));
    const sluice::fuzz::Folder made;
    const auto files = sluice::app::gguf_tokenizer_files(header.metadata, "fuzz");
    for (const auto& [name, text] : files) made.write(name, text);
    if (files.empty()) return 0;
    const auto tokenizer = sluice::text::Tokenizer::load(made.path());
    sluice::fuzz::accepted();
    sluice::fuzz::check_tokenizer(*tokenizer, sluice::fuzz::kText);
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
