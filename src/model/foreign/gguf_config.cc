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
    std::vector<std::string_view> names = family.gguf.also;
    names.insert(names.begin(), family.gguf.architecture);
    for (const std::string_view name : names) {
      if (name == keys.architecture()) return family.gguf.config(keys);
      known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
    }
  }
  keys.refuse(fmt::format("GGUF architecture \"{}\" is not read", keys.architecture()),
              fmt::format("sluice reads: {}; convert the Hugging Face checkpoint of the model "
                          "instead",
                          known));
}

}  // namespace sluice
