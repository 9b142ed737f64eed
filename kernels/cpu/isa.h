#pragma once
// Which instruction set the CPU kernels use: found once, may be lowered by hand (--cpu-isa) before
// anything runs. The one global of the kernels: read-only after first use.
#include <optional>
#include <string>
#include <string_view>

namespace sluice::kernels {

enum class Isa { kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx, kNeon, kNeonBf16 };

/// "avx2", and back.
std::string_view isa_name(Isa isa) noexcept;
std::optional<Isa> parse_isa(std::string_view name) noexcept;
/// The best that this CPU and system support.
Isa detected_isa() noexcept;
/// Whether they support this one too.
bool supports_isa(Isa isa) noexcept;
/// What the kernels use.
Isa active_isa() noexcept;
/// Uses `isa` from now on. Errors: kUser when the CPU lacks it. Not while kernels run.
void force_isa(Isa isa);
/// Whether a core's first level of cache takes so many misses at once that memory is read no slower
/// through it: Zen 5's does. Elsewhere lines needed later are fetched into the second level.
bool takes_many_misses() noexcept;
/// A line per operator: which variant runs here.
std::string describe_kernels();

}  // namespace sluice::kernels
