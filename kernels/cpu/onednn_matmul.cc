#include "kernels/cpu/onednn_matmul.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/mutex.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kBucket = 16;
}  // namespace

// One primitive for each multiple of kBucket, and one for each m up to kBucket.
int64_t onednn_rows(int64_t m) noexcept {
  return m <= kBucket ? m : (m + kBucket - 1) / kBucket * kBucket;
}

}  // namespace sluice::kernels

#ifdef SLUICE_NO_ONEDNN

namespace sluice::kernels {
void onednn_linear(const Activations&, const void*, int64_t, const float*, float*, int64_t,
                   std::span<std::byte>) {
  SLUICE_ASSERT(false, "a build without oneDNN multiplies with its own kernels");
}
int64_t onednn_scratch_bytes(int64_t, int64_t, int64_t, int) { return 0; }
std::string onednn_implementation() { return "(left out of this build)"; }
}  // namespace sluice::kernels

#else

#include <omp.h>

#include <dnnl.hpp>
#include <exception>
#include <unordered_map>

#include "kernels/cpu/isa.h"
#include "src/base/bytes.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
using Memory = dnnl::memory;

// Columns of y that a thread takes at a time: half a millisecond of a core with AMX at 512 rows,
// and sixteen shares of a matrix of 2048 rows.
constexpr int64_t kColumns = 128;
constexpr int64_t kLine = 64;

struct MatmulKey {
  int64_t m, n, k, ldx, ldy;
  bool has_bias;
  bool operator==(const MatmulKey&) const = default;
};

struct KeyHash {
  size_t operator()(const MatmulKey& key) const noexcept {
    uint64_t hash = key.has_bias;
    for (int64_t value : {key.m, key.n, key.k, key.ldx, key.ldy})
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u + (hash >> 29);
    return static_cast<size_t>(hash);
  }
};

struct Prepared {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

// While it lives, oneDNN starts no threads for the calling one. There is no other way to say so to
// a oneDNN that is built on OpenMP, as distributions' are (DNNL_CPU_THREADING_RUNTIME; one that
// takes a caller's thread pool has to be built for it). The number is the calling thread's own:
// what else in the process uses OpenMP, or another engine, keeps its threads.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Fails harmlessly when another user of oneDNN in this process was first.
bool lower_isa() noexcept {
  using dnnl::cpu_isa;
  auto isa = static_cast<cpu_isa>(0);  // all: of another name before version 3 and since
  switch (active_isa()) {
    case Isa::kGeneric: isa = cpu_isa::sse41; break;
    case Isa::kAvx2: isa = cpu_isa::avx2; break;
    case Isa::kAvx512: isa = cpu_isa::avx512_core; break;
    case Isa::kAvx512Bf16: isa = cpu_isa::avx512_core_bf16; break;
    case Isa::kAmx:
    case Isa::kNeon:
    case Isa::kNeonBf16: break;
  }
  return dnnl_set_max_cpu_isa(static_cast<dnnl_cpu_isa_t>(isa)) == dnnl_success;
}

struct Onednn {
  bool is_lowered = lower_isa();
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  Mutex mutex;  // of the tables; what is in them stays where it is
  std::unordered_map<MatmulKey, Prepared, KeyHash> prepared SLUICE_GUARDED_BY(mutex);
  std::unordered_map<MatmulKey, int64_t, KeyHash> scratch_bytes SLUICE_GUARDED_BY(mutex);
  // Of a share of a product of m rows or fewer.
  std::unordered_map<MatmulKey, int64_t, KeyHash> share_bytes SLUICE_GUARDED_BY(mutex);
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
  const OneThread one;
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

const Prepared& prepare(const MatmulKey& key) {
  Onednn& shared = onednn();
  const MutexLock lock(shared.mutex);
  const auto found = shared.prepared.find(key);
  if (found != shared.prepared.end()) return found->second;
  dnnl::matmul::primitive_desc description = describe(key);
  dnnl::matmul primitive(description);
  return shared.prepared.emplace(key, Prepared{description, primitive}).first->second;
}

int64_t scratch_of(const MatmulKey& key) {
  Onednn& shared = onednn();
  const MutexLock lock(shared.mutex);
  const auto [place, is_new] = shared.scratch_bytes.try_emplace(key, 0);
  if (is_new) place->second = static_cast<int64_t>(describe(key).scratchpad_desc().get_size());
  return place->second;
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

void execute(const Prepared& prepared, const void* x, const void* w, const float* bias, float* y,
             std::byte* scratch) {
  const OneThread one;
  const dnnl::engine& engine = onednn().engine;
  dnnl::stream stream(engine);
  const auto wrap = [&](const Memory::desc& desc, const void* data) {
    return Memory(desc, engine, const_cast<void*>(data));
  };
  std::unordered_map<int, Memory> arguments{
      {DNNL_ARG_SRC, wrap(prepared.description.src_desc(), x)},
      {DNNL_ARG_WEIGHTS, wrap(prepared.description.weights_desc(), w)},
      {DNNL_ARG_DST, wrap(prepared.description.dst_desc(), y)},
      {DNNL_ARG_SCRATCHPAD, wrap(prepared.description.scratchpad_desc(), scratch)}};
  // A product without bias reads none.
  if (bias) arguments.emplace(DNNL_ARG_BIAS, wrap(prepared.description.bias_desc(), bias));
  prepared.primitive.execute(stream, arguments);
  stream.wait();
}

int64_t largest_scratch(int64_t most, int64_t n, int64_t k) {
  int64_t bytes = 0;
  for (const int64_t columns : {std::min(n, kColumns), n % kColumns}) {
    if (columns == 0) continue;
    for (int64_t m = std::min(most, kBucket); m <= most; m += kBucket)
      for (const bool has_bias : {false, true})
        bytes = std::max(bytes, scratch_of({m, columns, k, k, n, has_bias}));
  }
  return round_up(std::max<int64_t>(bytes, 1), kLine);
}

// The largest scratch of a share of a product of up to max_m rows, whole lines. A plan asks some
// hundred thousand times for the same few products, and every product asks once.
int64_t share_scratch(int64_t max_m, int64_t n, int64_t k) {
  const int64_t most = onednn_rows(std::min(max_m, kOnednnRows));
  const MatmulKey key{most, n, k, 0, 0, false};
  Onednn& shared = onednn();
  {
    const MutexLock lock(shared.mutex);
    const auto found = shared.share_bytes.find(key);
    if (found != shared.share_bytes.end()) return found->second;
  }
  const int64_t bytes = largest_scratch(most, n, k);
  const MutexLock lock(shared.mutex);
  return shared.share_bytes.emplace(key, bytes).first->second;
}
}  // namespace

void onednn_linear(const Activations& x, const void* w, int64_t n, const float* bias, float* y,
                   int64_t ldy, std::span<std::byte> scratch) {
  const auto prepared_for = [&](int64_t columns) {
    return columns == 0 ? nullptr : guarded([&] {
      return &prepare({onednn_rows(x.m), columns, x.k, x.ld, ldy, bias != nullptr});
    });
  };
  const Prepared* const of_whole = prepared_for(n >= kColumns ? kColumns : 0);
  const Prepared* const of_rest = prepared_for(n % kColumns);
  const int64_t each = share_scratch(x.m, n, x.k);
  const int64_t members = static_cast<int64_t>(scratch.size()) / each;
  SLUICE_ASSERT(members > 0, "linear_scratch_bytes says how much");
  Mutex mutex;
  std::exception_ptr error;
  const auto multiply = [&](int64_t begin, int64_t end, int member) noexcept {
    try {
      for (int64_t share = begin; share < end; ++share) {
        const int64_t row = share * kColumns;
        execute(n - row >= kColumns ? *of_whole : *of_rest, x.bf16,
                static_cast<const uint16_t*>(w) + row * x.k, bias ? bias + row : nullptr, y + row,
                scratch.data() + member * each);
      }
    } catch (...) {
      const MutexLock lock(mutex);
      error = std::current_exception();
    }
  };
  deal_to_members((n + kColumns - 1) / kColumns,
                  {.members = static_cast<int>(std::min<int64_t>(members, loop_threads()))},
                  multiply);
  if (error) guarded([&] { std::rethrow_exception(error); });
}

int64_t onednn_scratch_bytes(int64_t max_m, int64_t n, int64_t k, int threads) {
  return guarded([&] { return threads * share_scratch(max_m, n, k); });
}

std::string onednn_implementation() {
  return guarded([&] {
    return std::string(describe({64, 1024, 1024, 1024, 1024, false}).impl_info_str());
  });
}

}  // namespace sluice::kernels

#endif
