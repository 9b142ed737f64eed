// A tokenizer.model, SentencePiece's or lines of base64 and rank, and the same in vocab.json and
// merges.txt: the first byte says which.
#include "src/base/error.h"
#include "tests/fuzz/token_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const sluice::fuzz::Folder model, vocabulary;
  std::string_view rest = sluice::fuzz::text_of(data + 1, size - 1);
  const auto& folder = data[0] % 2 == 0 ? model : vocabulary;
  if (data[0] % 2 == 0) {
    folder.write("tokenizer.model", rest);
  } else {
    folder.write("vocab.json", sluice::fuzz::cut(rest));
    folder.write("merges.txt", rest);
  }
  try {
    const auto tokenizer = sluice::text::Tokenizer::load(folder.path());
    sluice::fuzz::accepted();
    sluice::fuzz::check_tokenizer(*tokenizer, sluice::fuzz::kText);
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
