#pragma once
// From errno, and from what the standard library throws, to sluice::Error: the kind and the mend
// that go with each cause. Used by everything that calls the operating system. Thread safe.
#include <string>

#include "src/base/error.h"

namespace sluice {

/// "<what>: <text of error_number>" with its mend. kResource for space, quota, size, memory and
/// descriptor limits, else kFile. `what`: what was done and where, as in "reading 4MiB at offset 0
/// of a.bin", or the path alone.
Error system_error(int error_number, const std::string& what);

/// The operating system's words, thread safe ("No space left on device").
std::string error_text(int error_number);

/// The exception being handled as an Error, for those who report one: an Error as it is; the
/// system's refusals that the standard library throws (a folder that may not be entered, no more
/// threads or memory) as kFile or kResource; anything else is kInternal, a bug. Only inside a catch
/// block.
Error current_error();

}  // namespace sluice
