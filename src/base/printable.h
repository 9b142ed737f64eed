#pragma once
// Text that holds what files say (names, values) made safe for a terminal and a log. Pure; thread
// safe.
#include <string>
#include <string_view>

namespace sluice {

/// `text` as valid UTF-8 without control characters: those but line ends and tabs, characters that
/// turn the direction of writing, and bytes that are not UTF-8 become \xHH each. What is longer
/// than 8 KiB is cut there and says so.
std::string printable(std::string_view text);

}  // namespace sluice
