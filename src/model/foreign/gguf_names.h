#pragma once
// Names of matrices in GGUF files. Pure; thread safe.
#include <string>

namespace sluice {

/// Of "blk.3.ffn_up_exps.{e}.weight", which is one expert's, all experts'; of a name of some rows
/// of a matrix that matrix'. Else nothing.
std::string whole_gguf_name(std::string name);

}  // namespace sluice
