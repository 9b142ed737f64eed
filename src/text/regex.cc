#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "src/base/error.h"
#include "src/text/newer_characters.h"

namespace sluice::text {

namespace {
constexpr uint32_t kMatchLimit =
    20'000'000;  // steps of one match; real split patterns need a few per byte
struct FreeMatch {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const noexcept {
    pcre2_match_context_free(context);
  }
};

std::string message_of(int code) {
  unsigned char text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}
}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string pattern) : pattern_(std::move(pattern)), code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string translated = pcre2_pattern(pattern_);
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code_->code)
    throw Error(ErrorKind::kFile,
                fmt::format("split pattern \"{}\" at {}: {}", pattern_, offset, message_of(error)),
                "the tokenizer file is damaged or uses a pattern sluice can't read");
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // where it is refused, PCRE2 interprets
}

Regex::~Regex() = default;

std::vector<std::pair<size_t, size_t>> Regex::find_all(std::string_view text, Empty empty) const {
  std::vector<std::pair<size_t, size_t>> found;
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  size_t at = 0;
  while (at <= text.size()) {
    const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), context.get());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0)
      throw Error(ErrorKind::kFile,
                  fmt::format("split pattern \"{}\": {}", pattern_, message_of(count)),
                  "the tokenizer's pattern takes too long on this text");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[1] <= range[0]) {  // empty (or turned round by \K): step over one character
      at = std::max<size_t>(range[1], at);
      const bool is_behind_match = !found.empty() && found.back().second == at;
      if (empty == Empty::kKept && at < text.size() && !is_behind_match) found.emplace_back(at, at);
      ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
      continue;
    }
    found.emplace_back(range[0], range[1]);
    at = range[1];
  }
  return found;
}

}  // namespace sluice::text
