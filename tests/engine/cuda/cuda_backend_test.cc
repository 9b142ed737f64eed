// What a backend says of its GPU, and refuses: on the host's stand-in, which can be an older one.
#include "src/engine/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/model/planning_shapes.h"
#include "tests/engine/cuda/cuda_testing.h"

namespace sluice::testing {
namespace {

// A GPU of that compute capability, while it lives.
class Capability {
 public:
  Capability(int major, int minor) { cuda::host::set_capability(major, minor); }
  ~Capability() { cuda::host::set_capability(9, 0); }
};

ModelShape opt(const char* weights) {
  ModelShape shape = planning_shape("opt-1.3b").value();
  shape.set_weights(parse_weight_format(weights).value());
  return shape;
}

kernels::AttentionShape attention(const KvFormat& kv = DType::kF16, int head_dim = 64) {
  kernels::AttentionShape shape;
  shape.num_heads = shape.num_kv_heads = 32;
  shape.head_dim = head_dim;
  shape.page_tokens = 16;
  shape.kv_dtype = kv;
  return shape;
}

std::string refusal(const ModelShape& model, const kernels::AttentionShape& attention,
                    const kernels::QuantisedOptions& compute = {}) {
  try {
    CudaBackend(0, 1 << 20).require_runnable(model, AttentionShapes{attention}, compute);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_FALSE(error.mend().empty());
    return error.what();
  }
  return "";
}

TEST(CudaBackend, RefusesWhatItHasNoKernelsFor) {
  EXPECT_EQ(refusal(opt("f16"), attention()), "");
  EXPECT_EQ(refusal(opt("bf16"), attention(DType::kBF16, 256)), "");
  EXPECT_EQ(refusal(opt("bf16"), attention(DType::kBF16, 512)), "");
  EXPECT_NE(refusal(opt("f16"), attention(DType::kF16, 513)).find("heads of 513 elements"),
            std::string::npos);
  EXPECT_NE(refusal(opt("f16"), attention(DType::kF32)).find("f32 KV"), std::string::npos);
  kernels::AttentionShape latent = attention(DType::kF16, 576);
  latent.num_kv_heads = 1;
  latent.has_values = false;
  EXPECT_EQ(refusal(opt("f16"), latent), "");
  latent.kv_dtype = KvFormat(KvEncoding::kInt8);
  EXPECT_NE(refusal(opt("f16"), latent).find("int8 KV"), std::string::npos);
  latent.head_dim = 577;
  EXPECT_NE(refusal(opt("f16"), latent).find("latent rows of 577 elements"), std::string::npos);
  kernels::AttentionShape sparse = attention();
  sparse.sparsity = 0.5f;
  EXPECT_NE(refusal(opt("f16"), sparse).find("sparse attention"), std::string::npos);
  kernels::QuantisedOptions apart;
  apart.outlier_threshold = 6;
  EXPECT_NE(refusal(opt("int8"), attention(), apart).find("outliers"), std::string::npos);
}

TEST(CudaBackend, TakesMixturesAndChunks) {
  EXPECT_EQ(refusal(planning_shape("gpt-oss-20b").value(), attention()), "");
  kernels::AttentionShape chunked = attention();
  chunked.sliding_window = 8191;
  chunked.is_chunked = true;
  EXPECT_EQ(refusal(opt("f16"), chunked), "");
}

TEST(CudaBackend, MultipliesInt8ActivationsWithWhatIsNoKType) {
  kernels::QuantisedOptions int8;
  int8.activations = kernels::ActivationFormat::kInt8;
  for (const char* format : {"q2_k", "q4_k", "q6_k", "q5_1", "iq2", "iq4", "mxfp4"}) {
    EXPECT_EQ(refusal(opt(format), attention()), "");
    EXPECT_NE(refusal(opt(format), attention(), int8).find(format), std::string::npos);
  }
  EXPECT_EQ(refusal(opt("int4"), attention(), int8), "");
  // Of a mix what takes them gets them; the rest is named.
  ModelShape mix = opt("q4_k");
  mix.sublayers[1].weights[1].quantised = *parse_weight_format("q6_k");
  for (WeightShape& weight : mix.sublayers[2].weights)
    if (weight.may_be_quantised()) weight.quantised = *parse_weight_format("int4");
  EXPECT_EQ(refusal(mix, attention(), int8), "");
  const CudaBackend backend(0, 1 << 20);
  EXPECT_EQ(backend.otherwise(mix, int8), "inputs of 16 bits with q4_k, q6_k weights");
  EXPECT_EQ(backend.otherwise(mix, {}), "");
  EXPECT_EQ(backend.otherwise(opt("int4"), int8), "");
  EXPECT_EQ(backend.otherwise(opt("q4_0"), int8), "");
}

// Of a mix of formats K types are multiplied with inputs of 16 bits, the others with int8 ones,
// which is said; a store of K types alone has nothing for these.
TEST(CudaBackend, ARunSaysWhichWeightsMeetInputsOf16Bits) {
  EngineOptions options = options_for(greedy_requests({{5, 6, 7, 8}}, 1));
  options.activations = kernels::ActivationFormat::kInt8;
  const std::string mixed = fixture_model("stories260k:k-mixed");
  const char* const words =
      "int8 products (inputs of 16 bits with iq4, q2_k, q3_k, q4_k, q5_k, q6_k";
  EXPECT_NE(Engine::open(mixed, options)
                ->compute_name()
                .find("int8 products (inputs of 16 bits with iq4 weights)"),
            std::string::npos);
  options.backend = make_backend();
  EXPECT_NE(Engine::open(mixed, options)->compute_name().find(words), std::string::npos);
  EXPECT_EQ(Engine::open(fixture_model("stories260k:int4"), options)->compute_name().find("(inp"),
            std::string::npos);
  try {
    Engine::open(fixture_model("stories260k:q4_k"), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("q4_k weights"), std::string::npos) << error.what();
  }
  options.activations = kernels::ActivationFormat::k16Bit;
  EXPECT_EQ(Engine::open(mixed, options)->compute_name().find("inputs of"), std::string::npos);
}

TEST(CudaBackend, AGpuWithoutBf16RefusesIt) {
  const Capability turing(7, 5);
  EXPECT_EQ(refusal(opt("f16"), attention()), "");
  EXPECT_NE(refusal(opt("bf16"), attention()).find("multiplies no bf16"), std::string::npos);
  EXPECT_NE(refusal(opt("f16"), attention(DType::kBF16)).find("multiplies no bf16"),
            std::string::npos);
}

TEST(CudaBackend, KvIsBf16OfBf16ModelsOnly) {
  const CudaBackend hopper(0, 1 << 20);
  EXPECT_EQ(hopper.default_kv(opt("bf16")), KvFormat(DType::kBF16));
  EXPECT_EQ(hopper.default_kv(opt("f16")), KvFormat(DType::kF16));
  const Capability old(7, 5);
  EXPECT_EQ(CudaBackend(0, 1 << 20).default_kv(opt("bf16")), KvFormat(DType::kF16));
}

// Rows of fp8 are codes where the GPU multiplies them, and 16-bit numbers where it does not.
TEST(CudaBackend, WorkSpaceIsForWhatTheGpuMultiplies) {
  const ModelShape model = opt("fp8");
  const AttentionShapes shapes{attention()};
  kernels::QuantisedOptions compute;
  const CudaBackend hopper(0, 1 << 20);
  const int64_t plain = hopper.workspace_bytes(model, shapes, compute, 512, 0);
  compute.activations = kernels::ActivationFormat::kFp8;
  EXPECT_GT(hopper.workspace_bytes(model, shapes, compute, 512, 0), plain);
  const Capability ampere(8, 0);
  EXPECT_EQ(CudaBackend(0, 1 << 20).workspace_bytes(model, shapes, compute, 512, 0), plain);
}

// Which rows go through which adapter, and what comes of their first product.
TEST(CudaBackend, WorkSpaceIsForAdaptersToo) {
  const ModelShape model = opt("f16");
  const AttentionShapes shapes{attention()};
  const CudaBackend gpu(0, 1 << 20);
  for (const int64_t tokens : {1, 512}) {
    const auto bytes = [&](int64_t rank) {
      return gpu.workspace_bytes(model, shapes, {}, tokens, rank);
    };
    EXPECT_GE(bytes(64) - bytes(0), tokens * (64 * 4 + 2 * 40)) << tokens;
    EXPECT_GE(gpu.host_staging_bytes(model, shapes, tokens, 64) -
                  gpu.host_staging_bytes(model, shapes, tokens, 0),
              tokens * 2 * 40);
  }
}

}  // namespace
}  // namespace sluice::testing
