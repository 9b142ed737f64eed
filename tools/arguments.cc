#include "tools/arguments.h"

#include <fmt/format.h>

#include <charconv>

#include "kernels/quantise.h"
#include "src/app/machine.h"
#include "src/base/error.h"
#include "src/text/utf8.h"

namespace sluice::tools {

std::vector<int32_t> parse_ids(const std::string& text, const std::string& flag) {
  std::vector<int32_t> ids;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find(',', at);
    if (end == std::string::npos) end = text.size();
    int32_t id = 0;
    while (at < end && text[at] == ' ') ++at;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0)
      throw Error(ErrorKind::kUser,
                  fmt::format("{}: \"{}\" is not a token id", flag, text.substr(at, end - at)),
                  "write ids as 1,2,3");
    ids.push_back(id);
    at = end + 1;
  }
  return ids;
}

std::string read_text(const std::string& path, int64_t max_bytes) {
  if (path == "-") return read_standard_input(max_bytes);
  return read_file(path, max_bytes, Streams::kAllow);
}

WeightFormat weight_format_argument(const std::string& text, const std::string& flag) {
  const auto format = parse_weight_format(text);
  if (!format || (format->is_quantised() && !kernels::can_quantise_to(*format)))
    throw Error(ErrorKind::kUser, fmt::format("{} {} is no format of weights", flag, text),
                "write f32, f16, bf16, int8, int4, nf4, fp8, mxfp4, one with a group (int4-g128), "
                "q4_0, iq4, or q2_k to q6_k");
  return *format;
}

policy::Profile find_profile(const std::string& name_or_path) {
  if (name_or_path != "-") return app::find_profile(name_or_path);
  return policy::parse_profile(read_text(name_or_path, kMostSettingsBytes), name_or_path);
}

void check_utf8(const std::string& text, const std::string& what) {
  if (const auto at = text::first_invalid_utf8(text))
    throw Error(ErrorKind::kUser, fmt::format("{} is not UTF-8 at byte {}", what, *at),
                "save it as UTF-8 and try again");
}

}  // namespace sluice::tools
