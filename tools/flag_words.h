#pragma once
// The library's errors name parameters, as `memory_budget_bytes`; people at a command line know
// flags.
#include <string>
#include <string_view>

namespace sluice::tools {

/// `text` with every parameter in backquotes that a flag sets as that flag: --cpu-mem.
std::string in_flags(std::string_view text);

}  // namespace sluice::tools
