#pragma once
// What commands write on standard output: one JSON object, or text while it is made.
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace sluice::tools {

/// Prints `json` and a line end; strings that are not UTF-8 (paths may be anything) get U+FFFD.
void print_json(const nlohmann::ordered_json& json);
/// A piece of text as it comes: written to standard output and seen at once. One thread.
void write_text(std::string_view text);
/// A line end where standard error would go on in the middle of a line that write_text began in the
/// same place (a terminal, one file); else nothing. Put before a message.
const char* message_start();
/// Errors: kFile when something that was printed did not arrive (disk full, closed pipe).
void check_output();

}  // namespace sluice::tools
