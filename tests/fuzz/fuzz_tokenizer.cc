// A tokenizer.json up to the first NUL, then a text to encode.
#include <cstdint>
#include <string_view>

#include "src/base/error.h"
#include "src/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  try {
    const auto tokenizer = sluice::text::Tokenizer::from_json(input.substr(0, split));
    const auto text =
        split == std::string_view::npos ? std::string_view("Hello") : input.substr(split + 1);
    const auto ids = tokenizer->encode(text, sluice::text::AddSpecial::kYes);
    tokenizer->decode(ids, sluice::text::SkipSpecial::kNo);
  } catch (const sluice::Error&) {
  }
  return 0;
}
