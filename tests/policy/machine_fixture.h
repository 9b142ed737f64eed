#pragma once
// Machines for the policy's tests: plain numbers, so that times can be worked out by hand.
#include <random>

#include "policy/profile.h"

namespace sluice::policy {

/// 1e12 operations a second whatever the shape, 1e11 B/s of memory, a 1e9 B/s disk, no launch cost;
/// with `has_device` a device ten times as fast behind links of 1e10 B/s.
Profile plain_machine(bool has_device);
/// The same with every rate drawn from a factor of 30.
Profile random_machine(std::mt19937& random, bool has_device);

}  // namespace sluice::policy
