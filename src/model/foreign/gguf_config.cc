#include "src/model/foreign/gguf_config.h"

#include <fmt/format.h>

#include "src/model/family.h"
#include "src/model/foreign/gguf_keys.h"

namespace sluice {

std::string gguf_config_json(const io::Checkpoint& checkpoint) {
  const GgufKeys keys(checkpoint);
  std::string known;
  for (const Family& family : families()) {
    if (family.gguf.architecture.empty()) continue;
    if (family.gguf.architecture == keys.architecture()) return family.gguf.config(keys);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.gguf.architecture);
  }
  keys.refuse(fmt::format("GGUF architecture \"{}\" is not read", keys.architecture()),
              fmt::format("sluice reads: {}; convert the Hugging Face checkpoint of the model "
                          "instead",
                          known));
}

}  // namespace sluice
