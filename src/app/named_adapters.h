#pragma once
// Adapters by the names that requests choose them by: what --lora and the library's options say.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/engine.h"
#include "src/lora/adapter.h"

namespace sluice::app {

/// A PEFT folder and what it is called.
struct NamedAdapter {
  std::string name;
  std::filesystem::path folder;
  LoraAdapter adapter;
};

/// Of "name=DIR", or "DIR": called as the folder is. Errors: kUser for a name that is none (empty,
/// longer than 200 bytes, with control characters), those of LoraAdapter::open.
NamedAdapter open_adapter(const std::string& given);
/// All of them. Errors: kUser when two have one name, or one has `taken` (the model's own).
std::vector<NamedAdapter> open_adapters(const std::vector<std::string>& given,
                                        std::string_view taken = {});
/// Errors: kUser.
void check_adapter_name(std::string_view name);

/// Room for all of them, and for `more_bytes` of ranks up to `most_rank` loaded later.
AdapterRoom room_for(const BoundModel& model, const std::vector<NamedAdapter>& adapters,
                     int64_t more_bytes = 0, int64_t most_rank = 0);
/// Places them in an engine that was planned for them.
void load_adapters(Engine& engine, const std::vector<NamedAdapter>& adapters);

}  // namespace sluice::app
