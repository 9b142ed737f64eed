#pragma once
// What a generator has done so far.
#include <cstdint>

namespace sluice {

struct Stats {
  double load_seconds = 0;
  double prefill_seconds = 0;  ///< of passes that hold prompt tokens
  int64_t prefill_tokens = 0;
  double decode_seconds = 0;  ///< of passes that hold none
  int64_t decode_tokens = 0;  ///< all that were chosen
  int64_t passes = 0;
  int64_t preemptions = 0;        ///< sequences that gave their KV up for a while
  int64_t prefix_hit_tokens = 0;  ///< of prompts, not computed again
  int64_t peak_memory_bytes = 0;
  int64_t peak_device_bytes = 0;
  int64_t peak_disk_bytes = 0;
};

}  // namespace sluice
