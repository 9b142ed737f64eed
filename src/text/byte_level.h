#pragma once
// GPT-2's way to write any byte as a printable character: 188 bytes stand for themselves, the other
// 68 become U+0100...
#include <optional>
#include <string>
#include <string_view>

namespace sluice::text {

/// Every byte as its character, UTF-8.
std::string bytes_to_characters(std::string_view bytes);
/// The inverse; nothing when a character stands for no byte.
std::optional<std::string> characters_to_bytes(std::string_view characters);

/// How text is cut before merging, as OpenAI (GPT-2, o200k), Meta (Llama 3; Llama 4's is o200k) and
/// Alibaba (Qwen 2) published it with their models.
extern const char* const kGpt2Pattern;
extern const char* const kO200kPattern;
extern const char* const kKimiPattern;  ///< o200k's with Han apart, and no "/" behind signs
extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;

}  // namespace sluice::text
