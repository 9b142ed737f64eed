#pragma once
// The command line as people of other engines type it, brought to our spelling before CLI11 sees
// it.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "policy/profile.h"
#include "src/base/files.h"

namespace sluice::tools {

/// "1,2,3" to ids. Errors: kUser naming the flag.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& flag);
/// A whole text file (a pipe will do), or standard input for "-". Errors: kFile, for more than
/// `max_bytes` too.
std::string read_text(const std::string& path, int64_t max_bytes);
/// Errors: kUser naming the flag and the formats there are.
WeightFormat weight_format_argument(const std::string& text, const std::string& flag);
/// A shipped profile by name, or one from a file. Errors: kUser (unknown name, with those there
/// are; bad file), kFile.
policy::Profile find_profile(const std::string& name_or_path);
/// Errors: kUser naming the first byte of `text` that is not UTF-8; `what` is what messages call
/// it.
void check_utf8(const std::string& text, const std::string& what);

}  // namespace sluice::tools
