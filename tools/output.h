#pragma once
// What commands write on standard output: one JSON object, or text while it is made.
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace sluice::tools {

/// Prints `json` and a line end; strings that are not UTF-8 (paths may be anything) get U+FFFD.
void print_json(const nlohmann::ordered_json& json);
/// A piece of text as it comes: written to standard output and seen at once. One thread.
void write_text(std::string_view text);
/// Shows one line of what is under way on standard error: in a terminal in the place of the last
/// one, elsewhere on a line of its own. Any thread.
void show_status(std::string_view line);
/// Takes it from the terminal; what is written there begins with it. Any thread.
void clear_status();
/// Whether standard error is a terminal, where such lines replace each other.
bool status_is_redrawn();
/// What to put before a message on standard error: a line end where it would go on in the middle of
/// a line that write_text began in the same place (a terminal, one file); else nothing. A line of
/// show_status goes.
const char* message_start();
/// A message on standard error: "sluice: <line>". Any thread.
void tell(std::string_view line);
/// Errors: kFile when something that was printed did not arrive (disk full, closed pipe).
void check_output();

}  // namespace sluice::tools
