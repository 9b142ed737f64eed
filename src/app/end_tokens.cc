#include "src/app/end_tokens.h"

#include <algorithm>

#include "src/model/config.h"

namespace sluice::app {

std::vector<EndToken> end_tokens(const BoundModel& model) {
  const io::Checkpoint& checkpoint = model.checkpoint();
  std::vector<EndToken> from_gguf;
  if (checkpoint.format() == io::CheckpointFormat::kGguf)
    from_gguf = gguf_end_tokens(checkpoint.gguf_metadata());
  const std::string& generation = checkpoint.generation_config_text();
  const bool generation_says =
      !generation.empty() &&
      !ModelConfig(generation, "generation_config.json").integers("eos_token_id").empty();
  std::vector<EndToken> out;
  for (const int32_t id : model.eos_token_ids()) {
    const auto found = std::find_if(from_gguf.begin(), from_gguf.end(),
                                    [&](const EndToken& end) { return end.id == id; });
    if (!generation_says && found != from_gguf.end())
      out.push_back(*found);
    else
      out.push_back({id, {}, generation_says ? "generation_config.json" : "config.json"});
  }
  return out;
}

}  // namespace sluice::app
