#pragma once
// What the CUDA run time says of this machine's GPUs.
#include <string>

namespace sluice::tools {

/// One line: devices with memory, or why there are none.
std::string cuda_report();

}  // namespace sluice::tools
