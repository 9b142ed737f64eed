#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>

#include "kernels/cuda/dense_linear.h"
#include "src/base/error.h"

namespace sluice::cuda {

namespace {
void check(cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorKind::kDevice, std::string(doing) + ": " + cublasLtGetStatusString(status),
              "sluice doctor shows what the driver says");
}

struct DestroyHandle {
  void operator()(cublasLtHandle_t handle) const noexcept { cublasLtDestroy(handle); }
};
struct DestroyProduct {
  void operator()(cublasLtMatmulDesc_t product) const noexcept {
    cublasLtMatmulDescDestroy(product);
  }
};
struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t layout) const noexcept {
    cublasLtMatrixLayoutDestroy(layout);
  }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const noexcept {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
template <class Handle, class Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
using Handle = Owned<cublasLtHandle_t, DestroyHandle>;
using Product = Owned<cublasLtMatmulDesc_t, DestroyProduct>;
using Layout = Owned<cublasLtMatrixLayout_t, DestroyLayout>;
using Preference = Owned<cublasLtMatmulPreference_t, DestroyPreference>;

// What a product computes on.
struct Types {
  cudaDataType_t operands;
  cudaDataType_t sums;
  cublasComputeType_t compute;

  auto operator<=>(const Types&) const = default;
};
Types types_of(DType type) {
  const cudaDataType_t operands = type == DType::kF32   ? CUDA_R_32F
                                  : type == DType::kF16 ? CUDA_R_16F
                                                        : CUDA_R_16BF;
  return {operands, CUDA_R_32F, CUBLAS_COMPUTE_32F};
}
constexpr Types kInt8Types{CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I};
constexpr Types kFp8Types{CUDA_R_8F_E4M3, CUDA_R_32F, CUBLAS_COMPUTE_32F};

Layout make_layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(cols), ld),
        "describing a matrix");
  return Layout(layout);
}

// The largest power of two up to 256 that divides the address.
uint32_t alignment_of(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at) | 256u;
  return static_cast<uint32_t>(address & (~address + 1));
}

// One shape: cuBLASLt's matrices are columns of columns, so y^T = W x^T.
struct Shape {
  Product product;
  Layout w, x, y;
  cublasLtMatmulAlgo_t algorithm{};
};
using Key = std::tuple<Types, int64_t, int64_t, int64_t, int64_t, int64_t, bool, uint32_t, uint32_t,
                       uint32_t>;
}  // namespace

struct DenseLinear::Impl {
  Handle handle;
  std::byte* workspace = nullptr;
  std::map<Key, Shape> shapes;

  Shape make(const Key& key);
  const Shape& find(const Key& key);
  /// `one` and `zero` of the sums' type.
  void multiply(const Shape& shape, const void* one, const void* zero, const void* w, const void* x,
                void* y, Stream stream);
};

Shape DenseLinear::Impl::make(const Key& key) {
  const auto& [types, m, n, k, ldx, ldy, has_bias, w_alignment, x_alignment, y_alignment] = key;
  Shape shape;
  cublasLtMatmulDesc_t product = nullptr;
  check(cublasLtMatmulDescCreate(&product, types.compute, types.sums), "describing a product");
  shape.product.reset(product);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                 sizeof(transposed));
  if (has_bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t bias_type = CUDA_R_32F;
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                   sizeof(epilogue));
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                   sizeof(bias_type));
  }
  shape.w = make_layout(types.operands, k, n, k);
  shape.x = make_layout(types.operands, k, m, ldx);
  shape.y = make_layout(types.sums, n, m, ldy);
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "choosing an algorithm");
  const Preference preference(made);
  const auto bytes = static_cast<size_t>(workspace_bytes());
  cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                       sizeof(bytes));
  cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                       &w_alignment, sizeof(w_alignment));
  cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                       &x_alignment, sizeof(x_alignment));
  cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                       &y_alignment, sizeof(y_alignment));
  cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                                       &y_alignment, sizeof(y_alignment));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle.get(), product, shape.w.get(), shape.x.get(),
                                       shape.y.get(), shape.y.get(), made, 1, &best, &found),
        "choosing an algorithm");
  if (found == 0)
    throw Error(ErrorKind::kDevice, "cuBLASLt has no product for m " + std::to_string(m) + ", n " +
                                        std::to_string(n) + ", k " + std::to_string(k));
  shape.algorithm = best.algo;
  return shape;
}

const Shape& DenseLinear::Impl::find(const Key& key) {
  auto found = shapes.find(key);
  if (found == shapes.end()) found = shapes.emplace(key, make(key)).first;
  return found->second;
}

void DenseLinear::Impl::multiply(const Shape& shape, const void* one, const void* zero,
                                 const void* w, const void* x, void* y, Stream stream) {
  check(cublasLtMatmul(handle.get(), shape.product.get(), one, w, shape.w.get(), x, shape.x.get(),
                       zero, y, shape.y.get(), y, shape.y.get(), &shape.algorithm, workspace,
                       static_cast<size_t>(workspace_bytes()),
                       reinterpret_cast<cudaStream_t>(stream)),
        "multiplying matrices");
}

DenseLinear::DenseLinear(std::byte* workspace) : impl_(std::make_unique<Impl>()) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "starting cuBLASLt");
  impl_->handle.reset(handle);
  impl_->workspace = workspace;
}

DenseLinear::~DenseLinear() = default;

int64_t DenseLinear::workspace_bytes() noexcept { return int64_t{32} << 20; }

void DenseLinear::run(DType type, const void* x, int64_t ldx, int64_t m, int64_t k, const void* w,
                      int64_t n, const float* bias, float* y, int64_t ldy, Stream stream) {
  if (m == 0 || n == 0) return;
  const Shape& shape = impl_->find({types_of(type), m, n, k, ldx, ldy, bias != nullptr,
                                    alignment_of(w), alignment_of(x), alignment_of(y)});
  if (bias)
    cublasLtMatmulDescSetAttribute(shape.product.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                   sizeof(bias));
  const float one = 1;
  const float zero = 0;
  impl_->multiply(shape, &one, &zero, w, x, y, stream);
}

void DenseLinear::run_int8(const int8_t* x, int64_t m, int64_t k, const int8_t* w, int64_t n,
                           int32_t* y, Stream stream) {
  if (m == 0 || n == 0) return;
  const int32_t one = 1;
  const int32_t zero = 0;
  impl_->multiply(impl_->find({kInt8Types, m, n, k, k, n, false, alignment_of(w), alignment_of(x),
                               alignment_of(y)}),
                  &one, &zero, w, x, y, stream);
}

void DenseLinear::run_fp8(const uint8_t* x, int64_t m, int64_t k, const uint8_t* w, int64_t n,
                          float* y, Stream stream) {
  if (m == 0 || n == 0) return;
  const float one = 1;
  const float zero = 0;
  impl_->multiply(impl_->find({kFp8Types, m, n, k, k, n, false, alignment_of(w), alignment_of(x),
                               alignment_of(y)}),
                  &one, &zero, w, x, y, stream);
}

}  // namespace sluice::cuda
