#include <cublasLt.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/plain_linear.h"
#include "kernels/cuda/rows.h"
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
PlainType plain_type(DType type) {
  return type == DType::kF32   ? PlainType::kF32
         : type == DType::kF16 ? PlainType::kF16
                               : PlainType::kBF16;
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

void set_end(cublasLtMatmulDesc_t product, cublasLtEpilogue_t end) {
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &end, sizeof(end));
}
void set_bias(cublasLtMatmulDesc_t product, const float* bias) {
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
}

// cuBLASLt's own type has no name of its own, of which nvcc makes no vector.
struct Algorithm {
  cublasLtMatmulAlgo_t value;
};

// One shape: cuBLASLt's matrices are columns of columns, so y^T = W x^T.
struct Shape {
  Product product;
  Layout w, x, y;
  bool adds_bias = false;  // at its end
  // The best first; where there is none, tiles of our own multiply.
  std::vector<Algorithm> algorithms;

  bool is_found() const noexcept { return !algorithms.empty(); }
};
constexpr int kMostAlgorithms = 4;  // that are tried when one is refused
using Key = std::tuple<Types, int64_t, int64_t, int64_t, int64_t, int64_t, bool, uint32_t, uint32_t,
                       uint32_t>;
}  // namespace

struct DenseLinear::Impl {
  Handle handle;
  std::byte* workspace = nullptr;
  std::map<Key, Shape> shapes;

  Shape make(const Key& key, const float* bias);
  void choose(Shape& shape, const Key& key) const;
  Shape& find(const Key& key, const float* bias = nullptr);
  /// `one` and `zero` of the sums' type. False where every algorithm was refused: nothing is
  /// queued.
  bool multiply(Shape& shape, const void* one, const void* zero, const void* w, const void* x,
                void* y, Stream stream);

  std::string notice;
};

// Looks for an algorithm; which there is depends on the end, and on the bias that this reads.
void DenseLinear::Impl::choose(Shape& shape, const Key& key) const {
  const auto& [types, m, n, k, ldx, ldy, has_bias, w_alignment, x_alignment, y_alignment] = key;
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
  std::array<cublasLtMatmulHeuristicResult_t, kMostAlgorithms> best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle.get(), shape.product.get(), shape.w.get(), shape.x.get(), shape.y.get(), shape.y.get(),
      made, kMostAlgorithms, best.data(), &found);
  // "None" is said in either way.
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
    check(status, "choosing an algorithm");
  if (status != CUBLAS_STATUS_SUCCESS) return;
  for (size_t i = 0; i < static_cast<size_t>(found); ++i)
    if (best[i].state == CUBLAS_STATUS_SUCCESS) shape.algorithms.push_back({best[i].algo});
}

Shape DenseLinear::Impl::make(const Key& key, const float* bias) {
  const auto& [types, m, n, k, ldx, ldy, has_bias, w_alignment, x_alignment, y_alignment] = key;
  Shape shape;
  cublasLtMatmulDesc_t product = nullptr;
  check(cublasLtMatmulDescCreate(&product, types.compute, types.sums), "describing a product");
  shape.product.reset(product);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                 sizeof(transposed));
  shape.w = make_layout(types.operands, k, n, k);
  shape.x = make_layout(types.operands, k, m, ldx);
  shape.y = make_layout(types.sums, n, m, ldy);
  if (has_bias) {
    const cudaDataType_t bias_type = CUDA_R_32F;
    set_end(product, CUBLASLT_EPILOGUE_BIAS);
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                   sizeof(bias_type));
    set_bias(product, bias);
    choose(shape, key);
    shape.adds_bias = shape.is_found();
    if (shape.is_found()) return shape;
    set_bias(product, nullptr);
    set_end(product, CUBLASLT_EPILOGUE_DEFAULT);
  }
  choose(shape, key);
  return shape;
}

Shape& DenseLinear::Impl::find(const Key& key, const float* bias) {
  auto found = shapes.find(key);
  if (found == shapes.end()) found = shapes.emplace(key, make(key, bias)).first;
  return found->second;
}

// It may refuse what it proposed itself: then the next one of the shape, for good.
bool DenseLinear::Impl::multiply(Shape& shape, const void* one, const void* zero, const void* w,
                                 const void* x, void* y, Stream stream) {
  while (shape.is_found()) {
    const cublasStatus_t status = cublasLtMatmul(
        handle.get(), shape.product.get(), one, w, shape.w.get(), x, shape.x.get(), zero, y,
        shape.y.get(), y, shape.y.get(), &shape.algorithms.front().value, workspace,
        static_cast<size_t>(workspace_bytes()), reinterpret_cast<cudaStream_t>(stream));
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    notice = std::string("cuBLASLt refused an algorithm that it had proposed (") +
             cublasLtGetStatusString(status) +
             "): another one, or tiles of our own, multiply in its place";
    shape.algorithms.erase(shape.algorithms.begin());
  }
  return false;
}

DenseLinear::DenseLinear(std::byte* workspace) : impl_(std::make_unique<Impl>()) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "starting cuBLASLt");
  impl_->handle.reset(handle);
  impl_->workspace = workspace;
}

DenseLinear::~DenseLinear() = default;

int64_t DenseLinear::workspace_bytes() noexcept { return int64_t{32} << 20; }

std::string DenseLinear::take_notice() { return std::exchange(impl_->notice, {}); }

void DenseLinear::run(DType type, const void* x, int64_t ldx, int64_t m, int64_t k, const void* w,
                      int64_t n, const float* bias, float* y, int64_t ldy, Stream stream) {
  if (m == 0 || n == 0) return;
  Shape& shape = impl_->find({types_of(type), m, n, k, ldx, ldy, bias != nullptr, alignment_of(w),
                              alignment_of(x), alignment_of(y)},
                             bias);
  if (shape.adds_bias) set_bias(shape.product.get(), bias);
  const float one = 1;
  const float zero = 0;
  if (!impl_->multiply(shape, &one, &zero, w, x, y, stream))
    return plain_linear(plain_type(type), x, ldx, m, k, w, n, bias, y, ldy, stream);
  if (bias && !shape.adds_bias) add_bias(y, bias, {m, n, ldy}, stream);
}

void DenseLinear::run_int8(const int8_t* x, int64_t m, int64_t k, const int8_t* w, int64_t n,
                           int32_t* y, Stream stream) {
  if (m == 0 || n == 0) return;
  Shape& shape = impl_->find(
      {kInt8Types, m, n, k, k, n, false, alignment_of(w), alignment_of(x), alignment_of(y)});
  const int32_t one = 1;
  const int32_t zero = 0;
  if (!impl_->multiply(shape, &one, &zero, w, x, y, stream))
    plain_linear(PlainType::kInt8, x, k, m, k, w, n, nullptr, y, n, stream);
}

void DenseLinear::run_fp8(const uint8_t* x, int64_t m, int64_t k, const uint8_t* w, int64_t n,
                          float* y, Stream stream) {
  if (m == 0 || n == 0) return;
  Shape& shape = impl_->find(
      {kFp8Types, m, n, k, k, n, false, alignment_of(w), alignment_of(x), alignment_of(y)});
  const float one = 1;
  const float zero = 0;
  if (!impl_->multiply(shape, &one, &zero, w, x, y, stream))
    plain_linear(PlainType::kE4M3, x, k, m, k, w, n, nullptr, y, n, stream);
}

}  // namespace sluice::cuda
