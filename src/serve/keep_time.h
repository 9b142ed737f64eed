#pragma once
// How long a model stays in memory after its last request, as Ollama's "keep_alive" says it. Pure.
#include <chrono>
#include <optional>
#include <string_view>

namespace sluice::serve {

/// Nothing: for ever.
using KeepTime = std::optional<std::chrono::milliseconds>;

/// "5m", "1h30m", "90s", "300ms", "90" (seconds); below 0: for ever; 0: not at all. Nothing where
/// it is none of these.
std::optional<KeepTime> read_keep_time(std::string_view text);
KeepTime keep_time_of(double seconds);

}  // namespace sluice::serve
