// Profiles of machines: arbitrary bytes as a profile. Refused as the user's error, or a profile
// that comes back from its own JSON and whose times are numbers.
#include <cmath>

#include "policy/profile.h"
#include "src/base/error.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::policy;
  using sluice::fuzz::require;
  try {
    const Profile profile = parse_profile(sluice::fuzz::text_of(data, size), "fuzz");
    sluice::fuzz::accepted();
    validate(profile);
    const std::string json = profile_to_json(profile);
    require(profile_to_json(parse_profile(json, "again")) == json);
    const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
    for (const int64_t m : {1, 7, 4096})
      require(is_time(matmul_seconds(profile.host, sluice::DType::kBF16, m, 4096, 4096)));
    require(is_time(decode_attention_seconds(profile.host, sluice::DType::kF16, 1e6, 1e6)));
    require(is_time(prefill_attention_seconds(profile.host, sluice::DType::kF32, 1e9)));
    require(is_time(profile.page_read_seconds(3)) && is_time(profile.part_read_seconds(4096)));
  } catch (const sluice::Error& error) {
    require(error.kind() == sluice::ErrorKind::kUser && !error.text().empty());
  }
  return 0;
}
