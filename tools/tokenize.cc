// sluice tokenize: text to ids and ids to text.
#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/app/model_tokenizer.h"
#include "src/base/error.h"
#include "src/text/utf8.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/model_argument.h"
#include "tools/output.h"

namespace sluice::tools {

namespace {
struct TokenizeFlags {
  std::string model, pretokenizer, file, jsonl;
  std::optional<std::string> prompt, decode;
  bool no_special = false, json = false;

  text::AddSpecial add_special() const {
    return no_special ? text::AddSpecial::kNo : text::AddSpecial::kYes;
  }
};

void check_ids(const std::vector<int32_t>& ids, const text::Tokenizer& tokenizer,
               const std::string& where) {
  for (int32_t id : ids)
    if (id < 0 || id >= tokenizer.vocab_size())
      throw Error(ErrorKind::kUser,
                  fmt::format("{}: token id {} is outside the vocabulary of {}", where, id,
                              tokenizer.vocab_size()),
                  "use the ids of this model's tokenizer");
}

void print_text(const TokenizeFlags& flags, const text::Tokenizer& tokenizer) {
  const auto ids = parse_ids(*flags.decode, "--decode");
  check_ids(ids, tokenizer, "--decode");
  const std::string decoded = tokenizer.decode(ids, text::SkipSpecial::kNo);
  if (flags.json) return print_json({{"token_ids", ids}, {"text", decoded}});
  std::fwrite(decoded.data(), 1, decoded.size(), stdout);  // text may hold zero bytes
  std::printf("\n");
}

void print_ids(const TokenizeFlags& flags, const text::Tokenizer& tokenizer) {
  const std::string input =
      !flags.file.empty() ? read_text(flags.file, kMostTextBytes) : *flags.prompt;
  check_utf8(input, "the text");
  const auto ids = tokenizer.encode(input, flags.add_special());
  if (flags.json) {
    auto pieces = nlohmann::ordered_json::array();
    for (int32_t id : ids) pieces.push_back(text::mend_utf8(tokenizer.token_bytes(id)));
    return print_json({{"token_ids", ids}, {"tokens", pieces}, {"count", ids.size()}});
  }
  for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i ? "," : "", ids[i]);
  std::printf("\n");
}

std::vector<int32_t> ids_of(const nlohmann::json& line, const std::string& where) {
  std::vector<int32_t> ids;
  for (const auto& id : line) {
    // Compared as 64 bits: a list may hold what is no token of any model.
    const bool fits = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                      id.get<int64_t>() <= std::numeric_limits<int32_t>::max();
    if (!fits)
      throw Error(ErrorKind::kUser, fmt::format("{}: {} is no token id", where, id.dump()),
                  "write a JSON text, or a list of token ids, on each line");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// One answer a line, in order: ids of a text, the text of ids.
void print_lines(const TokenizeFlags& flags, const text::Tokenizer& tokenizer) {
  const std::string input = read_text(flags.jsonl, kMostTextBytes);
  size_t number = 0;
  for (size_t at = 0; at < input.size();) {
    const size_t end = std::min(input.find('\n', at), input.size());
    const std::string_view line(input.data() + at, end - at);
    const std::string where = fmt::format("{}, line {}", flags.jsonl, ++number);
    at = end + 1;
    const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    nlohmann::json answer;
    if (value.is_string()) {
      answer = tokenizer.encode(value.get_ref<const std::string&>(), flags.add_special());
    } else if (value.is_array()) {
      const auto ids = ids_of(value, where);
      check_ids(ids, tokenizer, where);
      answer = tokenizer.decode(ids, text::SkipSpecial::kNo);
    } else {
      throw Error(ErrorKind::kUser, where + ": neither a JSON text nor a list of token ids",
                  "write one of them on each line");
    }
    std::printf("%s\n", answer.dump().c_str());
  }
}

void run(const TokenizeFlags& flags) {
  const auto tokenizer = app::need_tokenizer(flags.model, flags.pretokenizer);
  if (!flags.jsonl.empty()) return print_lines(flags, *tokenizer);
  if (flags.decode) return print_text(flags, *tokenizer);
  if (!flags.prompt && flags.file.empty())
    throw Error(ErrorKind::kUser, "no text",
                "give -p TEXT, --file FILE (- for standard input), --decode 1,2,3 or --jsonl FILE");
  print_ids(flags, *tokenizer);
}
}  // namespace

Command add_tokenize(CLI::App& program) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* parser = program.add_subcommand("tokenize", "text to token ids, or back");
  add_model_option(*parser, flags->model, "model folder or tokenizer file, or a model's name")
      ->required();
  add_pretokenizer_option(*parser, flags->pretokenizer);
  CLI::Option* prompt = parser->add_option("-p,--prompt", flags->prompt, "the text");
  CLI::Option* file =
      parser->add_option("-f,--file", flags->file, "a file with the text; - for standard input");
  CLI::Option* decode =
      parser->add_option("--decode", flags->decode, "token ids as 1,2,3: print their text");
  parser
      ->add_option("--jsonl", flags->jsonl,
                   "a file with a JSON text, or a list of token ids, on each line: print the ids "
                   "of each text, and the text of each list, a line each; - for standard input")
      ->excludes(prompt, file, decode);
  parser->add_flag("--no-special", flags->no_special, "leave out what the tokenizer adds");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](std::stop_token) { run(*flags); }};
}

}  // namespace sluice::tools
