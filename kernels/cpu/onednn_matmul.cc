#include "kernels/cpu/onednn_matmul.h"

#include "src/base/error.h"

#ifdef SLUICE_NO_ONEDNN

namespace sluice::kernels {
void onednn_matmul(const MatmulKey&, const void*, const void*, const float*, float*,
                   std::span<std::byte>) {
  SLUICE_ASSERT(false, "a build without oneDNN multiplies with its own kernels");
}
int64_t onednn_scratch_bytes(const MatmulKey&) { return 0; }
std::string onednn_implementation() { return "(left out of this build)"; }
}  // namespace sluice::kernels

#else

#ifdef _OPENMP
#include <omp.h>
#endif

#include <dnnl.hpp>
#include <unordered_map>

#include "kernels/cpu/isa.h"

namespace sluice::kernels {

namespace {
using Memory = dnnl::memory;

// A primitive is made for a number of threads.
struct CacheKey {
  MatmulKey matmul;
  int threads;
  bool operator==(const CacheKey&) const = default;
};

struct KeyHash {
  size_t operator()(const CacheKey& key) const noexcept {
    const MatmulKey& matmul = key.matmul;
    uint64_t hash = matmul.has_bias;
    for (int64_t value :
         {matmul.m, matmul.n, matmul.k, matmul.ldx, matmul.ldy, int64_t{key.threads}})
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u + (hash >> 29);
    return static_cast<size_t>(hash);
  }
};

struct Prepared {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

// Fails harmlessly when another user of oneDNN in this process was first.
bool lower_isa() noexcept {
  using dnnl::cpu_isa;
  cpu_isa isa = cpu_isa::all;
  switch (active_isa()) {
    case Isa::kGeneric: isa = cpu_isa::sse41; break;
    case Isa::kAvx2: isa = cpu_isa::avx2; break;
    case Isa::kAvx512: isa = cpu_isa::avx512_core; break;
    case Isa::kAvx512Bf16: isa = cpu_isa::avx512_core_bf16; break;
    case Isa::kAmx: break;
  }
  return dnnl_set_max_cpu_isa(static_cast<dnnl_cpu_isa_t>(isa)) == dnnl_success;
}

struct Onednn {
  bool is_lowered = lower_isa();
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<CacheKey, Prepared, KeyHash> prepared;
  std::unordered_map<CacheKey, int64_t, KeyHash> scratch_bytes;
};

Onednn& onednn() {
  static Onednn instance;
  return instance;
}

Memory::desc bf16(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  return {{rows, cols}, Memory::data_type::bf16, Memory::dims{row_stride, col_stride}};
}

// oneDNN's matmul is x [m, k] times w [k, n]: our [n, k] row-major is that w with strides (1, k).
dnnl::matmul::primitive_desc describe(const MatmulKey& key) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const Memory::desc x = bf16(key.m, key.k, key.ldx, 1);
  const Memory::desc weights = bf16(key.k, key.n, 1, key.k);
  const Memory::desc y({key.m, key.n}, Memory::data_type::f32, Memory::dims{key.ldy, 1});
  const Memory::desc bias({1, key.n}, Memory::data_type::f32, Memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  if (key.has_bias) return {onednn().engine, x, weights, bias, y, attributes};
  return {onednn().engine, x, weights, y, attributes};
#else
  if (key.has_bias) return {dnnl::matmul::desc(x, weights, bias, y), attributes, onednn().engine};
  return {dnnl::matmul::desc(x, weights, y), attributes, onednn().engine};
#endif
}

CacheKey now(const MatmulKey& key) noexcept {
#ifdef _OPENMP
  return {key, omp_get_max_threads()};
#else
  return {key, 1};
#endif
}

const Prepared& prepare(const MatmulKey& key) {
  auto& prepared = onednn().prepared;
  const auto found = prepared.find(now(key));
  if (found != prepared.end()) return found->second;
  dnnl::matmul::primitive_desc description = describe(key);
  dnnl::matmul primitive(description);
  return prepared.emplace(now(key), Prepared{description, primitive}).first->second;
}

template <typename Call>
auto guarded(const Call& call) {
  try {
    return call();
  } catch (const dnnl::error& error) {
    throw Error(ErrorKind::kDevice, std::string("oneDNN: ") + error.message,
                "please report the model's shape and this CPU");
  }
}
}  // namespace

void onednn_matmul(const MatmulKey& key, const void* x, const void* w, const float* bias, float* y,
                   std::span<std::byte> scratch) {
  guarded([&] {
    const Prepared& prepared = prepare(key);
    const Memory::desc scratch_desc = prepared.description.scratchpad_desc();
    SLUICE_ASSERT(scratch_desc.get_size() <= scratch.size(),
                  "the scratch is sized for the same number of threads");
    Onednn& shared = onednn();
    const auto wrap = [&](const Memory::desc& desc, const void* data) {
      return Memory(desc, shared.engine, const_cast<void*>(data));
    };
    std::unordered_map<int, Memory> arguments{
        {DNNL_ARG_SRC, wrap(prepared.description.src_desc(), x)},
        {DNNL_ARG_WEIGHTS, wrap(prepared.description.weights_desc(), w)},
        {DNNL_ARG_DST, wrap(prepared.description.dst_desc(), y)},
        {DNNL_ARG_SCRATCHPAD, wrap(scratch_desc, scratch.data())}};
    if (key.has_bias)
      arguments.emplace(DNNL_ARG_BIAS, wrap(prepared.description.bias_desc(), bias));
    prepared.primitive.execute(shared.stream, arguments);
    shared.stream.wait();
    return 0;
  });
}

int64_t onednn_scratch_bytes(const MatmulKey& key) {
  return guarded([&] {
    const auto [place, is_new] = onednn().scratch_bytes.try_emplace(now(key), 0);
    if (is_new) place->second = static_cast<int64_t>(describe(key).scratchpad_desc().get_size());
    return place->second;
  });
}

std::string onednn_implementation() {
  return guarded([&] {
    return std::string(describe({64, 1024, 1024, 1024, 1024, false}).impl_info_str());
  });
}

}  // namespace sluice::kernels

#endif
