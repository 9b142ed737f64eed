#pragma once
// Flags and commands as other programs write them, in the words that the parser knows.
#include <string>
#include <vector>

namespace sluice::tools {

/// -ngl, -ot, ... to their long names; -ctk and -ctv, of llama.cpp, to one --kv-dtype ("q8_0" and
/// "q4_0" are int8 and int4, the two together k8v4).
std::vector<std::string> normalise_arguments(int argc, char** argv);

}  // namespace sluice::tools
