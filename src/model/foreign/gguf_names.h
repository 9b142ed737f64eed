#pragma once
// Names of matrices in GGUF files. Pure; thread safe.
#include <string>

namespace sluice {

/// Of "blk.3.ffn_up_exps.{e}.weight", which is one expert's, all experts'; of a name of some rows
/// of a matrix that matrix'. Else nothing.
std::string whole_gguf_name(std::string name);

/// What files call it that have it in a tensor of its own: of "blk.3.ffn_up.gate_rows.weight"
/// "blk.3.ffn_gate.weight". Of other names nothing.
std::string apart_gguf_name(const std::string& name);

/// Of "blk.3.attn_k.weight" what files call it that have q, k and v in one tensor:
/// "blk.3.attn_qkv.weight". Of other names nothing.
std::string joined_gguf_name(const std::string& name);

}  // namespace sluice
