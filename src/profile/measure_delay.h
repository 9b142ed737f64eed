#pragma once
// How much slower products get while another thread moves bytes.
#include <functional>

#include "policy/profile.h"
#include "src/profile/measure_parts.h"

namespace sluice {

/// How much moving bytes holds products up.
struct Delay {
  policy::Figure seconds_per_byte;  ///< moved, by which products end later
  policy::Figure moved_rate;        ///< bytes per second beside products
};

/// `move` moves some bytes, in a tenth of a second or less, and returns how many. The mean of a
/// product bound by memory and one bound by arithmetic; products alone and beside take turns, so
/// that what others do to the cores meets both. Errors: those of `move`; kCancelled.
Delay measure_delay(const MeasureLimits& limits, const std::function<int64_t()>& move,
                    const char* note);

}  // namespace sluice
