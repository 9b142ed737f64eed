#pragma once
// What Python's str does, on UTF-8. All count as work (meter.h). Pure but for that.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::chat {

/// Whether str.strip() and str.split() take the character as a blank.
bool is_blank(int32_t code_point);
/// As std::string's find and rfind. What they cost shows in the work: a search can be quadratic.
size_t position_of(std::string_view text, std::string_view part, size_t from);
size_t last_position_of(std::string_view text, std::string_view part,
                        size_t from = std::string_view::npos);
/// Without the blanks, or the characters of `chars`, at the chosen ends.
std::string strip(std::string_view text, const std::string* chars, bool left, bool right);
/// str.split and str.rsplit; a null separator: runs of blanks. `most` splits, -1: all.
std::vector<std::string> split(const std::string& text, const std::string* separator, int64_t most,
                               bool from_right);
std::vector<std::string> split_lines(const std::string& text, bool keeps_ends);
/// At most `most` times; -1: all.
std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t most);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalise(std::string_view text);

}  // namespace sluice::chat
