#include "kernels/cpu/isa.h"

#include <fmt/format.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "kernels/cpu/variant.h"
#include "kernels/linear.h"
#include "src/base/error.h"

namespace sluice::kernels {

namespace {
constexpr std::array<std::string_view, 7> kNames{"generic", "avx2", "avx512",   "avx512_bf16",
                                                 "amx",     "neon", "neon_bf16"};

bool has_amx_permission() noexcept {
#ifdef __x86_64__
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa detect() noexcept {
#ifdef __x86_64__
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!avx2) return Isa::kGeneric;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni"))
    return Isa::kAvx512;
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool amx = (d & (1u << 22)) && (d & (1u << 24));
  return amx && has_amx_permission() ? Isa::kAmx : Isa::kAvx512Bf16;
#elif defined(__aarch64__)
  // What the variants are compiled for: Armv8.2's instructions and those of their own.
  constexpr unsigned long kArmv82 = HWCAP_ATOMICS | HWCAP_CRC32 | HWCAP_ASIMDRDM;
  constexpr unsigned long kNeon = kArmv82 | HWCAP_ASIMDDP;
  if ((getauxval(AT_HWCAP) & kNeon) != kNeon) return Isa::kGeneric;
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 ? Isa::kNeonBf16 : Isa::kNeon;
#else
  return Isa::kGeneric;
#endif
}

bool is_zen5_or_later() noexcept {
#ifdef __x86_64__
  __builtin_cpu_init();
  constexpr unsigned kZen5Family = 0x1a;
  unsigned a = 1, b = 0, c = 0, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const unsigned base = a >> 8 & 0xf;
  const unsigned family = base == 0xf ? base + (a >> 20 & 0xff) : base;
  return __builtin_cpu_is("amd") && family >= kZen5Family;
#else
  return false;
#endif
}

std::atomic<int> g_forced{-1};
}  // namespace

std::string_view isa_name(Isa isa) noexcept { return kNames[static_cast<size_t>(isa)]; }

std::optional<Isa> parse_isa(std::string_view name) noexcept {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<Isa>(i);
  return std::nullopt;
}

Isa detected_isa() noexcept {
  static const Isa isa = detect();
  return isa;
}

bool supports_isa(Isa isa) noexcept {
  const Isa best = detected_isa();
  // Each of x86's has those before it, and each of ARM's.
  return isa == Isa::kGeneric || (isa <= best && (isa >= Isa::kNeon) == (best >= Isa::kNeon));
}

Isa active_isa() noexcept {
  const int forced = g_forced.load(std::memory_order_relaxed);
  return forced < 0 ? detected_isa() : static_cast<Isa>(forced);
}

bool takes_many_misses() noexcept {
  static const bool many = is_zen5_or_later();
  return many;
}

void force_isa(Isa isa) {
  if (!supports_isa(isa))
    throw Error(ErrorKind::kUser,
                fmt::format("this CPU has {}, not {}", isa_name(detected_isa()), isa_name(isa)),
                "leave `isa` out to use the best there is");
  g_forced = static_cast<int>(isa);
}

std::string describe_kernels() {
  const std::string_view rows = active_variant().name;
  return fmt::format(
      "cpu: {} (detected {})\nnorm, rope, softmax, activations, conversions: {}\nattention, "
      "kv_write: {}\nlinear: {}\n",
      isa_name(active_isa()), isa_name(detected_isa()), rows, rows, describe_linear());
}

}  // namespace sluice::kernels
