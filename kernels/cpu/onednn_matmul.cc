#include "kernels/cpu/onednn_matmul.h"

#include "src/base/error.h"

#ifdef SLUICE_NO_ONEDNN

namespace sluice::kernels {
bool onednn_matmul(const MatmulKey&, const void*, const void*, const float*, float*, std::span<std::byte>) { return false; }
int64_t onednn_scratch_bytes(const MatmulKey&) { return 0; }
int64_t onednn_blocked_bytes(DType dtype, int64_t n, int64_t k) { return n * k * dtype_bytes(dtype); }
void onednn_pack_rows(DType, const void*, int64_t, int64_t, int64_t, int64_t, std::byte*) {
  SLUICE_ASSERT(false, "a build without oneDNN keeps weights plain");
}
std::string onednn_implementation(DType, WeightLayout) { return "left out of this build"; }
}  // namespace sluice::kernels

#else

#include <dnnl.hpp>
#include <mutex>
#include <unordered_map>

namespace sluice::kernels {

namespace {
using Memory = dnnl::memory;

struct KeyHash {
  size_t operator()(const MatmulKey& key) const noexcept {
    uint64_t hash = static_cast<uint64_t>(key.dtype) * 4 + static_cast<uint64_t>(key.layout) * 2 + key.has_bias;
    for (int64_t value : {key.m, key.n, key.k, key.ldx, key.ldy})
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u + (hash >> 29);
    return static_cast<size_t>(hash);
  }
};

struct Prepared {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

struct Onednn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::mutex mutex;
  std::unordered_map<MatmulKey, Prepared, KeyHash> prepared;
};

Onednn& onednn() {
  static Onednn instance;
  return instance;
}

Memory::data_type type_of(DType dtype) {
  return dtype == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

Memory::desc strided(int64_t rows, int64_t cols, DType dtype, int64_t row_stride, int64_t col_stride) {
  return {{rows, cols}, type_of(dtype), Memory::dims{row_stride, col_stride}};
}

// oneDNN's matmul is x [m, k] times w [k, n]: our [n, k] row-major is that w with strides (1, k).
dnnl::matmul::primitive_desc describe(const MatmulKey& key, const Memory::desc& weights) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const Memory::desc x = strided(key.m, key.k, key.dtype, key.ldx, 1);
  const Memory::desc y = strided(key.m, key.n, DType::kF32, key.ldy, 1);
  const Memory::desc bias({1, key.n}, Memory::data_type::f32, Memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  if (key.has_bias) return {onednn().engine, x, weights, bias, y, attributes};
  return {onednn().engine, x, weights, y, attributes};
#else
  if (key.has_bias) return {dnnl::matmul::desc(x, weights, bias, y), attributes, onednn().engine};
  return {dnnl::matmul::desc(x, weights, y), attributes, onednn().engine};
#endif
}

// The blocked layout is chosen once per (n, k), for a batch in the middle, and then serves every m.
Memory::desc blocked_weights(DType dtype, int64_t n, int64_t k) {
  constexpr int64_t kTypicalRows = 64;
  const Memory::desc any({k, n}, type_of(dtype), Memory::format_tag::any);
  return describe({dtype, WeightLayout::kBlocked, kTypicalRows, n, k, k, n, false}, any).weights_desc();
}

const Prepared& prepare(const MatmulKey& key) {
  Onednn& shared = onednn();
  std::lock_guard lock(shared.mutex);
  const auto found = shared.prepared.find(key);
  if (found != shared.prepared.end()) return found->second;
  const Memory::desc weights = key.layout == WeightLayout::kPlain ? strided(key.k, key.n, key.dtype, 1, key.k)
                                                                  : blocked_weights(key.dtype, key.n, key.k);
  dnnl::matmul::primitive_desc description = describe(key, weights);
  dnnl::matmul primitive(description);
  return shared.prepared.emplace(key, Prepared{description, primitive}).first->second;
}

template <typename Call>
auto guarded(const Call& call) {
  try {
    return call();
  } catch (const dnnl::error& error) {
    throw Error(ErrorKind::kDevice, std::string("oneDNN: ") + error.message, "please report the model's shape and this CPU");
  }
}
}  // namespace

bool onednn_matmul(const MatmulKey& key, const void* x, const void* w, const float* bias, float* y,
                   std::span<std::byte> scratch) {
  return guarded([&] {
    const Prepared& prepared = prepare(key);
    const Memory::desc scratch_desc = prepared.description.scratchpad_desc();
    if (scratch_desc.get_size() > scratch.size()) return false;
    Onednn& shared = onednn();
    const auto wrap = [&](const Memory::desc& desc, const void* data) {
      return Memory(desc, shared.engine, const_cast<void*>(data));
    };
    std::unordered_map<int, Memory> arguments{{DNNL_ARG_SRC, wrap(prepared.description.src_desc(), x)},
                                              {DNNL_ARG_WEIGHTS, wrap(prepared.description.weights_desc(), w)},
                                              {DNNL_ARG_DST, wrap(prepared.description.dst_desc(), y)},
                                              {DNNL_ARG_SCRATCHPAD, wrap(scratch_desc, scratch.data())}};
    if (key.has_bias) arguments.emplace(DNNL_ARG_BIAS, wrap(prepared.description.bias_desc(), bias));
    prepared.primitive.execute(shared.stream, arguments);
    shared.stream.wait();
    return true;
  });
}

int64_t onednn_scratch_bytes(const MatmulKey& key) {
  return guarded([&] { return static_cast<int64_t>(prepare(key).description.scratchpad_desc().get_size()); });
}

int64_t onednn_blocked_bytes(DType dtype, int64_t n, int64_t k) {
  return guarded([&] { return static_cast<int64_t>(blocked_weights(dtype, n, k).get_size()); });
}

void onednn_pack_rows(DType dtype, const void* rows, int64_t begin, int64_t count, int64_t n, int64_t k, std::byte* packed) {
  guarded([&] {
    Onednn& shared = onednn();
    const Memory::desc whole = blocked_weights(dtype, n, k);
    const Memory::desc part = whole.submemory_desc({k, count}, {0, begin});
    Memory source(strided(k, count, dtype, 1, k), shared.engine, const_cast<void*>(rows));
    Memory target(part, shared.engine, packed);
    dnnl::reorder(source, target).execute(shared.stream, source, target);
    shared.stream.wait();
    return 0;
  });
}

std::string onednn_implementation(DType dtype, WeightLayout layout) {
  return guarded([&] {
    return std::string(prepare({dtype, layout, 64, 1024, 1024, 1024, 1024, false}).description.impl_info_str());
  });
}

}  // namespace sluice::kernels

#endif
