#include "tests/kernels/cuda/fake_cublas_lt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/cuda/shim/host_grid.h"
#include "src/base/dtype.h"

namespace sluice::cuda::host {
namespace {
MissingProducts missing_products;
int64_t products = 0;
int64_t wrong_questions = 0;

struct Product {
  cudaDataType sums;
  bool is_transposed = false;
  bool adds_bias = false;
  bool has_f32_bias = false;
  const float* bias = nullptr;
};
struct Layout {
  cudaDataType type;
  int64_t rows, cols, ld;
};
// What the caller says all addresses are multiples of.
struct Alignments {
  uint32_t a, b, d;
};

bool is_aligned(const void* at, uint32_t to) { return reinterpret_cast<uintptr_t>(at) % to == 0; }

const Product& of(cublasLtMatmulDesc_t product) {
  return *reinterpret_cast<const Product*>(product);
}
const Layout& of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<const Layout*>(layout); }

double value(cudaDataType type, const void* from, int64_t index) {
  const auto* half = static_cast<const uint16_t*>(from);
  switch (type) {
    case CUDA_R_32F: return static_cast<const float*>(from)[index];
    case CUDA_R_16F: return f16_to_f32(half[index]);
    case CUDA_R_16BF: return bf16_to_f32(half[index]);
    case CUDA_R_8F_E4M3: return e4m3_to_f32(static_cast<const uint8_t*>(from)[index]);
    case CUDA_R_8I: return static_cast<const int8_t*>(from)[index];
    default: throw std::logic_error("no such type here");
  }
}

// Columns of columns: d [rows of a^T, columns of b].
void multiply(const Product& product, const Layout& a, const void* a_data, const Layout& b,
              const void* b_data, const Layout& d, void* d_data) {
  for (int64_t row = 0; row < d.rows; ++row)
    for (int64_t col = 0; col < d.cols; ++col) {
      double sum = 0;
      for (int64_t i = 0; i < a.rows; ++i)
        sum += value(a.type, a_data, row * a.ld + i) * value(b.type, b_data, col * b.ld + i);
      if (product.adds_bias) sum += product.bias[row];
      if (d.type == CUDA_R_32I)
        static_cast<int32_t*>(d_data)[col * d.ld + row] = static_cast<int32_t>(sum);
      else
        static_cast<float*>(d_data)[col * d.ld + row] = static_cast<float>(sum);
    }
}
}  // namespace

void set_missing_products(const MissingProducts& missing) { missing_products = missing; }
int64_t cublas_products() { return products; }
int64_t cublas_wrong_questions() { return wrong_questions; }
}  // namespace sluice::cuda::host

using namespace sluice::cuda::host;

extern "C" {
const char* CUBLASWINAPI cublasLtGetStatusString(cublasStatus_t) { return "refused by the tests"; }
cublasStatus_t CUBLASWINAPI cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product,
                                                     cublasComputeType_t, cudaDataType_t sums) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{sums});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                           cublasLtMatmulDescAttributes_t attribute,
                                                           const void* given, size_t bytes) {
  auto& to = *reinterpret_cast<Product*>(product);
  const auto is = [&](auto wanted) {
    return bytes == sizeof(wanted) && std::memcmp(given, &wanted, bytes) == 0;
  };
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) to.is_transposed = is(CUBLAS_OP_T);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) to.adds_bias = is(CUBLASLT_EPILOGUE_BIAS);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) to.has_f32_bias = is(CUDA_R_32F);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) std::memcpy(&to.bias, given, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                                       cudaDataType type, uint64_t rows,
                                                       uint64_t cols, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Alignments{256, 256, 256});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Alignments*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void* given, size_t bytes) {
  auto& to = *reinterpret_cast<Alignments*>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) std::memcpy(&to.a, given, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) std::memcpy(&to.b, given, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) std::memcpy(&to.d, given, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
// An end that adds a bias is looked at with the bias it will have: without one there is none. The
// algorithm remembers for what addresses it is.
cublasStatus_t CUBLASWINAPI cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference,
    int wanted, cublasLtMatmulHeuristicResult_t results[], int* found) {
  static_assert(sizeof(Alignments) + sizeof(int) <= sizeof(cublasLtMatmulAlgo_t));
  const int most = std::min(wanted, 3);
  for (int i = 0; i < most; ++i) {
    auto* const to = reinterpret_cast<std::byte*>(&results[i].algo);
    std::memcpy(to, reinterpret_cast<const Alignments*>(preference), sizeof(Alignments));
    std::memcpy(to + sizeof(Alignments), &i, sizeof(i));
    results[i].state = CUBLAS_STATUS_SUCCESS;
  }
  const Product& what = of(product);
  const bool is_wrong = what.adds_bias && (!what.bias || !what.has_f32_bias);
  wrong_questions += is_wrong ? 1 : 0;
  const bool is_missing =
      missing_products.all || (missing_products.with_bias && what.adds_bias) || is_wrong;
  *found = is_missing ? 0 : most;
  return is_missing && missing_products.says_so ? CUBLAS_STATUS_NOT_SUPPORTED
                                                : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t product, const void*, const void* a,
    cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void*,
    const void*, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
    const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t stream) {
  Alignments promised{};
  std::memcpy(&promised, algorithm, sizeof(promised));
  int which = 0;
  std::memcpy(&which, reinterpret_cast<const std::byte*>(algorithm) + sizeof(promised),
              sizeof(which));
  if (which < missing_products.refused) return CUBLAS_STATUS_ARCH_MISMATCH;
  if (!is_aligned(a, promised.a) || !is_aligned(b, promised.b) || !is_aligned(d, promised.d))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Product what = of(product);
  const Layout of_a = of(a_layout), of_b = of(b_layout), of_d = of(d_layout);
  if (!what.is_transposed || of_a.rows != of_b.rows || of_a.cols != of_d.rows ||
      of_b.cols != of_d.cols)
    return CUBLAS_STATUS_INVALID_VALUE;
  ++products;
  enqueue_work(reinterpret_cast<sluice::cuda::Stream>(stream),
               [=] { multiply(what, of_a, a, of_b, b, of_d, d); });
  return CUBLAS_STATUS_SUCCESS;
}
}
