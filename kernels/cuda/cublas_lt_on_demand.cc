// cuBLASLt's functions that dense_linear_cuda.cu calls, each of which opens the library when it is
// first called. Linked as usual it would be loaded by every start of the program, also where there
// is no GPU: half a gigabyte to map, of which 94 MiB are written to while it is relocated.
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>
#include <vector>

#include "kernels/cuda/library_places.h"
#include "src/base/error.h"

namespace {
using sluice::Error;
using sluice::ErrorKind;

// By the name that the loader looks for, else where it was when this was built, else where toolkits
// and Python's packages have it.
void* open_library() {
  std::vector<std::string> places{SLUICE_CUBLASLT_NAME, SLUICE_CUBLASLT_PATH};
  for (std::string& place : sluice::cuda::toolkit_libraries(SLUICE_CUBLASLT_NAME))
    places.push_back(std::move(place));
  std::string reason;  // the first: of what the loader found, or that it found nothing
  for (const std::string& place : places) {
    if (void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* said = ::dlerror();
    if (reason.empty() && said) reason = said;
  }
  throw Error(ErrorKind::kDevice,
              "cuBLASLt can't be loaded: " + reason + "; nor from " SLUICE_CUBLASLT_PATH ", " +
                  sluice::cuda::toolkit_folders(),
              "install the cuBLAS of CUDA's version that this was built with (pip install "
              "nvidia-cublas has it too), or say where it is with LD_LIBRARY_PATH");
}

template <typename Function>
Function* find(const char* name) {
  static void* const library = open_library();
  void* found = ::dlsym(library, name);
  if (!found)
    throw Error(ErrorKind::kDevice, std::string(SLUICE_CUBLASLT_NAME) + " has no " + name,
                "install the cuBLAS of the CUDA toolkit that this was built with");
  return reinterpret_cast<Function*>(found);
}
}  // namespace

// A function of the library: its type is the header's.
#define FORWARD(result, name, parameters, arguments)           \
  result CUBLASWINAPI name parameters {                        \
    static auto* const function = find<decltype(name)>(#name); \
    return function arguments;                                 \
  }

extern "C" {
FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
        (cublasLtMatmulDesc_t * product, cublasComputeType_t compute, cudaDataType_t scale),
        (product, compute, scale))
FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t product), (product))
FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void* value,
         size_t bytes),
        (product, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
        (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols,
         int64_t ld),
        (layout, type, rows, cols, ld))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
        (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
        (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const void* value, size_t bytes),
        (preference, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
         cublasLtMatmulPreference_t preference, int wanted,
         cublasLtMatmulHeuristicResult_t results[], int* found),
        (handle, product, a, b, c, d, preference, wanted, results, found))
FORWARD(cublasStatus_t, cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
         const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
         size_t workspace_bytes, cudaStream_t stream),
        (handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
         algorithm, workspace, workspace_bytes, stream))
}
