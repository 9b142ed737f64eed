// Text that goes on after a prompt: generate MODEL PROMPT [GiB of memory]
#include <sluice/sluice.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  if (argc < 3) return std::puts("generate MODEL PROMPT [GiB of memory]"), 2;
  sluice::Options options;
  options.context_tokens = 512;
  if (argc > 3) options.memory_budget_bytes = std::atoll(argv[3]) << 30;
  const auto model = sluice::Model::open(argv[1]);
  const auto tokenizer = sluice::Tokenizer::load(argv[1]);
  sluice::Generator generator(sluice::Plan::find(model, options));
  sluice::Sampling sampling;
  sampling.temperature = 0;
  sampling.max_tokens = 64;
  sluice::TextStream text(tokenizer);
  generator.generate(tokenizer.encode(argv[2]), sampling, [&](int32_t token) {
    return std::fputs(text.push(token).c_str(), stdout), std::fflush(stdout), true;
  });
  std::puts(text.finish().c_str());
} catch (const sluice::Error& error) {
  return std::fprintf(stderr, "%s\n", error.what()), sluice::exit_code(error.kind());
}
