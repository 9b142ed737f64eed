#pragma once
// Small text and JSON files of a model folder (config.json, indices, file headers), read with
// limits: what comes from outside may be a Git LFS pointer, have duplicate keys, nest a million
// deep or be no JSON at all, and each of these is an Error with path and place. Functions share
// nothing and are thread safe.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice::io {

/// How large a file may be and become.
struct JsonLimits {
  int64_t max_bytes = 256 << 20;
  int64_t max_values = 4'000'000;  // about 100 bytes of memory each at worst
  int max_depth = 64;
};

/// `where` is for errors (a path). Errors: kFile (syntax with position, duplicate key, a limit).
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const JsonLimits& limits = {});
/// sluice::read_file + parse_json.
nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

}  // namespace sluice::io
