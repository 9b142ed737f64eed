// A tokenizer.json up to the first NUL, then tokenizer_config.json up to the next, then a text.
#include "src/base/error.h"
#include "tests/fuzz/token_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest = sluice::fuzz::text_of(data, size);
  const std::string_view json = sluice::fuzz::cut(rest), config = sluice::fuzz::cut(rest);
  try {
    const auto tokenizer = sluice::text::Tokenizer::from_json(json, config);
    sluice::fuzz::accepted();
    sluice::fuzz::check_tokenizer(*tokenizer, rest.empty() ? sluice::fuzz::kText : rest);
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
