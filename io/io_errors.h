#pragma once
// From errno to sluice::Error: the kind and the mend that go with each cause. Used by everything in
// io/ that calls the operating system.
#include <string>

#include "src/base/error.h"

namespace sluice::io {

/// "<what>: <text of error_number>" with its mend. kResource for space, quota, size, memory and
/// descriptor limits, else kFile. `what`: what was done and where, as in "reading 4MiB at offset 0
/// of a.bin".
Error system_error(int error_number, const std::string& what);

/// The operating system's words, thread safe ("No space left on device").
std::string error_text(int error_number);

}  // namespace sluice::io
