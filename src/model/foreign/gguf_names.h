#pragma once
// Names of matrices in GGUF files. Pure; thread safe.
#include <string>

namespace sluice {

/// Of "blk.3.ffn_up_exps.{e}.weight", which is one expert's, all experts'; of a name of some rows
/// of a matrix that matrix'. Else nothing.
std::string whole_gguf_name(std::string name);

/// What files call it that have it in a tensor of its own: of "blk.3.attn_qkv.q_rows.weight"
/// "blk.3.attn_q.weight". Of other names nothing.
std::string apart_gguf_name(const std::string& name);

}  // namespace sluice
