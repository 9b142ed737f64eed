#pragma once
// What the processor is called.
#include <istream>
#include <string>

namespace sluice {

/// The processor's name as the system says it; on ARM, where it says numbers only, the core's name
/// or those numbers ("Neoverse V2", "ARM core 0x41/0xd4f"). "CPU" where it says nothing.
std::string processor_name();
/// The same of the text of a /proc/cpuinfo.
std::string processor_name(std::istream& cpuinfo);

}  // namespace sluice
