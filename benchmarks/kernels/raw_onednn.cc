#include "benchmarks/kernels/raw_onednn.h"

#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

namespace sluice::bench {

namespace {
using Memory = dnnl::memory;

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, DType dtype, int64_t m, int64_t n,
                                      int64_t k) {
  const auto type = dtype == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const Memory::desc x({m, k}, type, Memory::format_tag::ab);
  const Memory::desc w({k, n}, type, Memory::format_tag::any);
  const Memory::desc y({m, n}, Memory::data_type::f32, Memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  return {engine, x, w, y, attributes};
#else
  return {dnnl::matmul::desc(x, w, y), attributes, engine};
#endif
}
}  // namespace

struct RawOnednn::Parts {
  Parts(DType dtype, int64_t m, int64_t n, int64_t k)
      : description(describe(engine, dtype, m, n, k)),
        primitive(description),
        scratch(description.scratchpad_desc().get_size() + 64) {}
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  std::vector<std::byte> scratch;
};

RawOnednn::RawOnednn(DType dtype, int64_t m, int64_t n, int64_t k)
    : parts_(std::make_unique<Parts>(dtype, m, n, k)) {}
RawOnednn::~RawOnednn() = default;

int64_t RawOnednn::weight_bytes() const {
  return static_cast<int64_t>(parts_->description.weights_desc().get_size());
}

void RawOnednn::run(const void* x, const std::byte* weights, float* y) {
  Parts& p = *parts_;
  const auto wrap = [&](const Memory::desc& desc, const void* data) {
    return Memory(desc, p.engine, const_cast<void*>(data));
  };
  auto* scratch =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p.scratch.data()) + 63) / 64 * 64);
  p.primitive.execute(p.stream,
                      {{DNNL_ARG_SRC, wrap(p.description.src_desc(), x)},
                       {DNNL_ARG_WEIGHTS, wrap(p.description.weights_desc(), weights)},
                       {DNNL_ARG_DST, wrap(p.description.dst_desc(), y)},
                       {DNNL_ARG_SCRATCHPAD, wrap(p.description.scratchpad_desc(), scratch)}});
  p.stream.wait();
}

}  // namespace sluice::bench
