#include "src/text/split_rules.h"

#include <algorithm>
#include <utility>

#include "src/base/edit_distance.h"
#include "src/text/byte_level.h"

namespace sluice::text {

namespace {
using Pattern = std::string_view;

constexpr Pattern kGpt2[] = {kGpt2Pattern};
constexpr Pattern kDigitsApart[] = {R"(\p{N})", kGpt2Pattern};
constexpr Pattern kLlama3[] = {kLlama3Pattern};
constexpr Pattern kQwen2[] = {kQwen2Pattern};
constexpr Pattern kQwen35[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Pattern kJais2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})"};
constexpr Pattern kO200k[] = {kO200kPattern};
constexpr Pattern kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
// Digits by threes from the right, of runs that end where a word does. What is of a word is as
// Oniguruma has it: not all numbers, but circled letters.
constexpr Pattern kTinyAya[] = {
    R"(\d{1,3}(?=(?:\d{3})*(?![\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}])))",
    kO200kPattern};
constexpr Pattern kYoutu[] = {
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Pattern kDeepseekV3[] = {
    R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Pattern kSpark[] = {
    R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)",
    R"(\p{N})"};
constexpr Pattern kAfmoe[] = {
    R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))",
    R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
// Letters with case, of the Unicode that the rule was written with.
constexpr Pattern kDeepseekLlm[] = {
    R"([\r\n])",
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)",
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
    R"(\s+\z)",
    R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)",
    R"(\p{N})"};
constexpr Pattern kDeepseekCoder[] = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                      R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)",
                                      R"(\p{N})"};
constexpr Pattern kFalcon[] = {R"([\p{P}$+<=>^~|`]+)", kGpt2Pattern, kBytesStep, R"(\p{N}+)",
                               R"([0-9][0-9][0-9])"};
constexpr Pattern kDefault[] = {R"([\p{P}$+<=>^~|]+)", kGpt2Pattern, R"(\p{N}+)",
                                R"([0-9][0-9][0-9])"};
constexpr Pattern kBloom[] = {
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+)"};
constexpr Pattern kViking[] = {kBloom[0], R"(\p{N})"};
constexpr Pattern kChameleon[] = {
    R"(<sentinel:[0-9]+>)",    R"((IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z)",
    R"(([\t\n]|    |  ))",     R"(\p{N})",
    R"([\p{P}!-/:-@\[-`{-~])", kGpt2Pattern};
constexpr Pattern kKimi[] = {kKimiPattern};
constexpr Pattern kSuperBpe[] = {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"};
constexpr Pattern kSeedCoder[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Pattern kUfakzeka[] = {
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Pattern kLaguna[] = {R"([^\n]+|[\n]+)", kQwen2Pattern};
constexpr Pattern kExaoneMoe[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"};
constexpr Pattern kMinicpm5[] = {
    R"(\p{N}{1,3})",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Pattern kK2Horizon[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}\x{200C}\x{200D}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Pattern kLines[] = {R"(\n+)"};

constexpr SplitRule kRules[] = {
    {.name = "default", .patterns = kDefault},
    {.name = "llama-bpe", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "llama3", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "llama-v3", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "falcon3", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "falcon-h1", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "pixtral", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "midm-2.0", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "lfm2", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "jina-v5-nano", .patterns = kLlama3, .ignores_merges = true, .adds_begin = true},
    {.name = "dbrx", .patterns = kLlama3},
    {.name = "smaug-bpe", .patterns = kLlama3},
    {.name = "glm4", .patterns = kLlama3},
    {.name = "glm5", .patterns = kLlama3},
    {.name = "chatglm-bpe", .patterns = kLlama3},
    {.name = "minicpm5", .patterns = kMinicpm5, .ignores_merges = true},
    {.name = "jais-2", .patterns = kJais2},
    {.name = "k2-horizon", .patterns = kK2Horizon},
    {.name = "gpt-2", .patterns = kGpt2},
    {.name = "phi-2", .patterns = kGpt2},
    {.name = "jina-es", .patterns = kGpt2},
    {.name = "jina-de", .patterns = kGpt2},
    {.name = "jina-v2-es", .patterns = kGpt2},
    {.name = "jina-v2-de", .patterns = kGpt2},
    {.name = "jina-v1-en", .patterns = kGpt2},
    {.name = "jina-v2-code", .patterns = kGpt2},
    {.name = "roberta-bpe", .patterns = kGpt2},
    {.name = "gigachat", .patterns = kGpt2},
    {.name = "a.x-4.0", .patterns = kGpt2},
    {.name = "mellum", .patterns = kGpt2},
    {.name = "modern-bert", .patterns = kGpt2},
    {.name = "exaone4", .patterns = kGpt2},
    {.name = "jais", .patterns = kGpt2},
    {.name = "trillion", .patterns = kGpt2},
    {.name = "granite-docling", .patterns = kGpt2},
    {.name = "mpt", .patterns = kGpt2, .composes = true},
    {.name = "olmo", .patterns = kGpt2, .composes = true},
    {.name = "smollm", .patterns = kDigitsApart},
    {.name = "starcoder", .patterns = kDigitsApart},
    {.name = "refact", .patterns = kDigitsApart},
    {.name = "command-r", .patterns = kDigitsApart, .composes = true},
    {.name = "codeshell", .patterns = kDigitsApart},
    {.name = "exaone", .patterns = kDigitsApart},
    {.name = "minerva-7b", .patterns = kDigitsApart},
    {.name = "mellum2", .patterns = kDigitsApart},
    {.name = "qwen2", .patterns = kQwen2, .composes = true},
    {.name = "deepseek-r1-qwen", .patterns = kQwen2, .composes = true},
    {.name = "f2llmv2", .patterns = kQwen2, .composes = true},
    {.name = "megrez", .patterns = kQwen2, .composes = true},
    {.name = "kormo", .patterns = kQwen2},
    {.name = "stablelm2", .patterns = kQwen2},
    {.name = "hunyuan", .patterns = kQwen2},
    {.name = "solar-open", .patterns = kQwen2},
    {.name = "grok-2", .patterns = kQwen2},
    // Their own expression says the same in other words.
    {.name = "bailingmoe", .patterns = kQwen2},
    {.name = "bailingmoe2", .patterns = kQwen2},
    {.name = "llada-moe", .patterns = kQwen2},
    {.name = "ufakzeka", .patterns = kUfakzeka},
    {.name = "laguna", .patterns = kLaguna},
    {.name = "qwen35", .patterns = kQwen35, .composes = true},
    {.name = "gpt-4o", .patterns = kO200k},
    {.name = "llama4", .patterns = kO200k},
    {.name = "kanana2", .patterns = kO200k},
    {.name = "talkie", .patterns = kO200k},
    {.name = "minimax-m2", .patterns = kO200k},
    {.name = "granite-embed-multi-97m", .patterns = kO200k, .ignores_merges = true},
    {.name = "tekken", .patterns = kTekken, .ignores_merges = true, .adds_begin = true},
    {.name = "tiny_aya", .patterns = kTinyAya},
    {.name = "cohere2moe", .patterns = kTinyAya},
    {.name = "kimi-k2", .patterns = kKimi},
    {.name = "youtu", .patterns = kYoutu, .ignores_merges = true},
    {.name = "deepseek-llm", .patterns = kDeepseekLlm},
    {.name = "deepseek-coder", .patterns = kDeepseekCoder},
    {.name = "deepseek-v3", .patterns = kDeepseekV3},
    {.name = "hunyuan-dense", .patterns = kDeepseekV3},
    {.name = "joyai-llm", .patterns = kDeepseekV3},
    {.name = "hy_v4", .patterns = kDeepseekV3},
    {.name = "spark2_5", .patterns = kSpark},
    {.name = "afmoe", .patterns = kAfmoe},
    {.name = "falcon", .patterns = kFalcon},
    {.name = "bloom", .patterns = kBloom},
    {.name = "poro-chat", .patterns = kBloom},
    {.name = "gpt3-finnish", .patterns = kBloom},
    {.name = "viking", .patterns = kViking},
    {.name = "chameleon", .patterns = kChameleon, .adds_begin = true},
    {.name = "superbpe", .patterns = kSuperBpe},
    {.name = "seed-coder", .patterns = kSeedCoder},
    {.name = "exaone-moe", .patterns = kExaoneMoe},
    {.name = "gemma4", .patterns = kLines, .adds_begin = true, .is_of_pieces = true},
    {.name = "granite-embed-multi-311m",
     .patterns = kLines,
     .adds_begin = true,
     .is_of_pieces = true},
    {.name = "mmbert", .patterns = kLines, .adds_begin = true, .is_of_pieces = true},
    {.name = "sarvam-moe", .patterns = kLines, .is_of_pieces = true},
};
}  // namespace

std::span<const SplitRule> split_rules() { return kRules; }

const SplitRule* find_split_rule(std::string_view name) {
  const auto found = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const SplitRule& rule) { return rule.name == name; });
  return found == std::end(kRules) ? nullptr : found;
}

std::string_view nearest_split_rule(std::string_view name) {
  constexpr size_t kLongestName = 64;  // what is longer is no name
  name = name.substr(0, kLongestName);
  const SplitRule* nearest = kRules;
  const auto rank = [&](const SplitRule& rule) {
    return std::pair(!name.starts_with(rule.name), edit_distance(name, rule.name));
  };
  for (const SplitRule& rule : kRules)
    if (rank(rule) < rank(*nearest)) nearest = &rule;
  return nearest->name;
}

}  // namespace sluice::text
