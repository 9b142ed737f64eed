// sluice tokenize: text to ids and ids to text.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/base/error.h"
#include "src/text/utf8.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/output.h"

namespace sluice::tools {

namespace {
struct TokenizeFlags {
  std::string model, file;
  std::optional<std::string> prompt, decode;
  bool no_special = false, json = false;
};

void print_text(const TokenizeFlags& flags, const text::Tokenizer& tokenizer) {
  const auto ids = parse_ids(*flags.decode, "--decode");
  for (int32_t id : ids)
    if (id >= tokenizer.vocab_size())
      throw Error(ErrorKind::kUser,
                  fmt::format("--decode: token id {} is outside the vocabulary of {}", id,
                              tokenizer.vocab_size()),
                  "use the ids of this model's tokenizer");
  const std::string decoded = tokenizer.decode(ids, text::SkipSpecial::kNo);
  if (flags.json) return print_json({{"token_ids", ids}, {"text", decoded}});
  std::fwrite(decoded.data(), 1, decoded.size(), stdout);  // text may hold zero bytes
  std::printf("\n");
}

void print_ids(const TokenizeFlags& flags, const text::Tokenizer& tokenizer) {
  const std::string input = !flags.file.empty() ? read_text(flags.file) : *flags.prompt;
  check_utf8(input, "the text");
  const auto ids =
      tokenizer.encode(input, flags.no_special ? text::AddSpecial::kNo : text::AddSpecial::kYes);
  if (flags.json) {
    auto pieces = nlohmann::ordered_json::array();
    for (int32_t id : ids) pieces.push_back(text::mend_utf8(tokenizer.token_bytes(id)));
    return print_json({{"token_ids", ids}, {"tokens", pieces}, {"count", ids.size()}});
  }
  for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i ? "," : "", ids[i]);
  std::printf("\n");
}

void run(const TokenizeFlags& flags) {
  const auto tokenizer = need_tokenizer(flags.model);
  if (flags.decode) return print_text(flags, *tokenizer);
  if (!flags.prompt && flags.file.empty())
    throw Error(ErrorKind::kUser, "no text",
                "give -p TEXT, --file FILE (- for standard input) or --decode 1,2,3");
  print_ids(flags, *tokenizer);
}
}  // namespace

Command add_tokenize(CLI::App& program) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* parser = program.add_subcommand("tokenize", "text to token ids, or back");
  parser->add_option("model,-m,--model", flags->model, "model folder or tokenizer file")
      ->required()
      ->envname("SLUICE_MODEL");
  parser->add_option("-p,--prompt", flags->prompt, "the text");
  parser->add_option("-f,--file", flags->file, "a file with the text; - for standard input");
  parser->add_option("--decode", flags->decode, "token ids as 1,2,3: print their text");
  parser->add_flag("--no-special", flags->no_special, "leave out what the tokenizer adds");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](std::stop_token) { run(*flags); }};
}

}  // namespace sluice::tools
