// Column by column: the columns of a pass, one after the other, are the stream that passes were
// made of when they came whole. The hashes were taken then.
#include <gtest/gtest.h>

#include <iterator>

#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

// All that a task says, its bytes and places in the rings too.
uint64_t fold_all(uint64_t hash, const Task& task) {
  hash = fold_task(hash, task);
  const auto fold = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3u;
  };
  fold(task.bytes);
  fold(flat(task).offset);
  fold(flat(task).host_offset);
  for (const int64_t offset : flat(task).part_offsets) fold(offset);
  return hash;
}

template <typename Make>
uint64_t hash_of_streams(unsigned seed, const Make& make) {
  std::mt19937 random(seed);
  uint64_t hash = 0;
  for (int round = 0; round < 40; ++round)
    for (const Task& task : make(random, round).tasks) hash = fold_all(hash, task);
  return hash;
}

struct Hashes {
  uint64_t without_device;
  uint64_t with_device;
};
constexpr Hashes kBefore[] = {
    {0x4c2064c42ac0e9d2u, 0x54b4eda9eabd398du}, {0xc4443b70c9c9792cu, 0x7d98836c24e39defu},
    {0xe41ab4dff4f08936u, 0xb59f68b6dd5effedu}, {0x7be520b48213f037u, 0xdde15ac0ef8b976du},
    {0xaa5bdbecc856aee9u, 0x1cf699a3a903935bu}, {0xdb451711eb5cd5dcu, 0xd51c523a63a85e56u},
    {0x004b79a85fd152b0u, 0xd6d1dee2028876fbu}, {0x6c5bf0bc134b4032u, 0xbe00ef09a1e69108u},
    {0xa290de306391766cu, 0x8e4797afe6653adeu}, {0x1a018d6ce7bfc993u, 0x89e9af242621acb8u},
    {0xa32e416308f80100u, 0x2bb467c2b4336694u}, {0x8597640bc83715cau, 0xc289194b705aa12au},
    {0xb544830f8d3576fdu, 0xe17683c6d5d8a888u}, {0x7ae64d93c7af51d8u, 0x172c1f48650df51eu},
    {0xb03c95023558ac7fu, 0xa482171b5e27865au}, {0xd99af3726b446c97u, 0x04b544879589ce81u},
};

TEST(Columns, OneAfterTheOtherAreThePassesOfBefore) {
  for (size_t seed = 0; seed < std::size(kBefore); ++seed) {
    EXPECT_EQ(hash_of_streams(100 + seed,
                              [](std::mt19937& random, int round) {
                                return random_stream(random, round % 3 == 0);
                              }),
              kBefore[seed].without_device)
        << "without a device, seed " << seed;
    EXPECT_EQ(hash_of_streams(200 + seed, [](std::mt19937& random,
                                             int) { return random_device_stream(random); }),
              kBefore[seed].with_device)
        << "with a device, seed " << seed;
  }
}

}  // namespace
}  // namespace sluice
