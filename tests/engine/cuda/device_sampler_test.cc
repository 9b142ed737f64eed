// What requests ask for, on the way to the kernel that samples.
#include "src/engine/cuda/device_sampler.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/driver.h"

namespace sluice::testing {
namespace {
constexpr int64_t kVocab = 300;  // five words of a mask

// Bits behind the mask that a guide gives are not set, whatever was there.
TEST(DeviceSampler, TokensBehindAShortMaskMayNotCome) {
  const int64_t bytes = DeviceSampler::area_bytes(kVocab, 2);
  cuda::DeviceMemory area(bytes), logits(kVocab * 4);
  std::vector<std::byte> host(static_cast<size_t>(bytes), std::byte{0xff});
  const cuda::OwnedStream stream;
  std::vector<float> values(kVocab);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 100;
  cuda::copy_to_device(logits.data(), values.data(), kVocab * 4, stream.get());

  sampling::SamplingParams params;
  params.temperature = 0;
  const sampling::Sampler sampler(params, {});
  DeviceSampler device(kVocab, 2, {area.data(), static_cast<size_t>(bytes)}, host);
  const std::vector<uint64_t> whole(5, ~uint64_t{0}), two_words(2, ~uint64_t{0});
  for (const auto& [mask, expected] : {std::pair{whole, 299}, {two_words, 127}, {whole, 299}}) {
    device.begin();
    ASSERT_TRUE(device.add(0, {&sampler, {{}, {}, mask}}));
    device.queue(reinterpret_cast<float*>(logits.data()), stream.get());
    cuda::synchronize(stream.get());
    const auto choice = device.choice(0);
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->token, expected);
  }
}

}  // namespace
}  // namespace sluice::testing
