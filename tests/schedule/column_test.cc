// Column by column: the columns of a pass, one after the other, are the stream that passes were
// made of when they came whole. The hashes were taken then.
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <string>
#include <tuple>

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

// A made-up router: which parts a micro-batch of a pass needs of a sublayer.
struct Router {
  std::mt19937 random;
  std::vector<int32_t> operator()(const ScheduleSublayer& sublayer) {
    std::vector<int32_t> out;
    for (size_t i = 0; i < sublayer.on_demand.size(); ++i)
      if (random() % 3 == 0) out.push_back(static_cast<int32_t>(i));
    return out;
  }
};

struct RoutedStream {
  Stream stream;
  std::map<std::tuple<int64_t, int32_t, int32_t>, std::vector<int32_t>> demanded;
  int64_t routes = 0;
};

RoutedStream random_routed_stream(std::mt19937& random, bool has_device) {
  RoutedStream out;
  Stream& stream = out.stream;
  stream = has_device ? random_device_stream(random) : random_stream(random, random() % 2 == 0);
  ScheduleShape& shape = stream.shape;
  shape.activation_slots = std::max(shape.activation_slots, 2);
  for (ScheduleSublayer& sublayer : shape.sublayers) {
    if (sublayer.has_attention || random() % 2 == 0) continue;
    int64_t all = 0, largest = 0;
    for (size_t parts = 1 + random() % 6; parts > 0; --parts) {
      const int64_t bytes = 4096 * (1 + static_cast<int64_t>(random() % 5));
      sublayer.on_demand.push_back({bytes, !has_device || random() % 2 == 0});
      all += bytes;
      largest = std::max(largest, bytes);
    }
    shape.demand_ring_bytes = std::max(shape.demand_ring_bytes, all + largest);
    if (shape.paths.weights_from_disk.stops_between() > 0)
      shape.host_ring_bytes = std::max(shape.host_ring_bytes, largest);
  }
  Router router{std::mt19937(random())};
  stream.tasks.clear();
  stream.first_of_pass.clear();
  ScheduleGenerator generator(shape);
  for (size_t pass = 0; pass < stream.passes.size(); ++pass) {
    stream.first_of_pass.push_back(stream.tasks.size());
    generator.begin_pass(stream.passes[pass], stream.more_follow[pass]);
    while (generator.has_column()) {
      std::vector<int32_t> demanded;
      if (const auto route = generator.awaited()) {
        const Task& task = stream.tasks.at(static_cast<size_t>(route->task));
        EXPECT_EQ(task.compute().step, ComputeStep::kUntilRoute);
        EXPECT_EQ(task.micro_batch, route->micro_batch);
        demanded = router(shape.sublayers[static_cast<size_t>(route->sublayer)]);
        out.demanded[{task.pass, route->sublayer, route->micro_batch}] = demanded;
        ++out.routes;
      }
      for (Task& task : generator.next_column(demanded)) stream.tasks.push_back(std::move(task));
    }
  }
  return out;
}

TEST(Columns, AColumnDemandsPartsAfterItsRouteAndWaitsForThem) {
  std::mt19937 random(51);
  int64_t routes = 0, shared = 0;
  for (int round = 0; round < 200; ++round) {
    const RoutedStream routed = random_routed_stream(random, round % 2 == 0);
    const Stream& stream = routed.stream;
    routes += routed.routes;
    const SureOrder order(stream.tasks);
    std::map<std::tuple<int64_t, int32_t, int32_t>, TaskId> loads;  // pass, sublayer, part
    std::map<std::tuple<int64_t, int32_t, int32_t>, TaskId> asked;  // pass, sublayer, micro-batch
    for (const Task& task : stream.tasks) {
      const auto& sublayer = stream.shape.sublayers[static_cast<size_t>(task.sublayer)];
      const auto fixed = static_cast<int32_t>(sublayer.parts.size());
      const std::tuple step{task.pass, task.sublayer, task.micro_batch};
      if (const auto* load = std::get_if<PartLoad>(&task.work); load && load->part >= fixed)
        loads[{task.pass, task.sublayer, load->part}] = task.id;
      if (task.kind != TaskKind::kCompute || !sublayer.has_route()) continue;
      if (task.compute().step == ComputeStep::kUntilRoute) {
        asked[step] = task.id;
        continue;
      }
      ASSERT_EQ(task.compute().step, ComputeStep::kAfterRoute);
      const std::vector<int32_t>& wanted = routed.demanded.at(step);
      ASSERT_EQ(task.compute().demanded.size(), wanted.size());
      ASSERT_TRUE(order.ends_before(asked.at(step), task.id));
      for (size_t i = 0; i < wanted.size(); ++i) {
        const DemandedPart& part = task.compute().demanded[i];
        ASSERT_EQ(part.part, fixed + wanted[i]);
        const TaskId load = loads.at({task.pass, task.sublayer, part.part});
        ASSERT_TRUE(order.ends_before(load, task.id));
        const Task& loaded = stream.tasks[static_cast<size_t>(load)];
        ASSERT_EQ(part.offset, loaded.part_load().offset);
        ASSERT_LE(part.offset + loaded.bytes, stream.shape.demand_ring_bytes);
        shared += loaded.micro_batch != task.micro_batch;
      }
    }
    ASSERT_EQ(simulate(stream.tasks, random).end.size(), stream.tasks.size());
  }
  EXPECT_GT(routes, 1000);
  EXPECT_GT(shared, 200) << "micro-batches share what they both need";
}

TEST(Columns, WhatAColumnDemandsLiesWhereNobodyReadsAnyMore) {
  std::mt19937 random(52);
  int64_t compared = 0;
  for (int round = 0; round < 200; ++round) {
    const RoutedStream routed = random_routed_stream(random, round % 2 == 0);
    const Stream& stream = routed.stream;
    const SureOrder order(stream.tasks);
    struct Region {
      int64_t begin, end;
      TaskId load;
      std::vector<TaskId> readers;
    };
    std::vector<Region> regions;
    std::map<std::tuple<int64_t, int32_t, int32_t>, size_t> region_of;
    for (const Task& task : stream.tasks) {
      const auto& sublayer = stream.shape.sublayers[static_cast<size_t>(task.sublayer)];
      const auto* load = std::get_if<PartLoad>(&task.work);
      const bool fills = load && (task.lane == Lane::kHostToDevice || load->host_offset < 0);
      if (fills && load->part >= static_cast<int32_t>(sublayer.parts.size())) {
        region_of[{task.pass, task.sublayer, load->part}] = regions.size();
        regions.push_back({load->offset, load->offset + task.bytes, task.id, {}});
      }
      if (task.kind != TaskKind::kCompute) continue;
      for (const DemandedPart& part : task.compute().demanded)
        regions[region_of.at({task.pass, task.sublayer, part.part})].readers.push_back(task.id);
    }
    for (const Region& later : regions)
      for (const Region& earlier : regions) {
        if (earlier.load >= later.load) break;
        if (earlier.end <= later.begin || later.end <= earlier.begin) continue;
        ++compared;
        for (const TaskId reader : earlier.readers)
          ASSERT_TRUE(order.ends_before(reader, later.load)) << "round " << round;
      }
  }
  EXPECT_GT(compared, 500);
}

TEST(Columns, WrittenOutTheNextRouteIsQueuedBeforeThePartsOfTheOneBefore) {
  ScheduleGenerator generator({.sublayers = {{{}, false}, {{{4096}}, false, {{512}, {256}}}},
                               .weight_ring_bytes = 8192,
                               .demand_ring_bytes = 2048});
  generator.begin_pass({{}, {}, {}}, false);
  const auto words = [](const std::vector<Task>& tasks) {
    std::string out;
    for (const Task& task : tasks) {
      const bool is_load = task.kind == TaskKind::kLoadWeights;
      const int what = is_load ? task.part_load().part : static_cast<int>(task.compute().step);
      out += std::to_string(task.id) + (is_load ? " part " : " step ") + std::to_string(what) +
             " of " + std::to_string(task.micro_batch) + " after";
      for (const TaskId wait : task.waits) out += " " + std::to_string(wait);
      out += "; ";
    }
    return out;
  };
  EXPECT_EQ(words(generator.next_column()),
            "0 part 0 of 0 after; 1 step 0 of 0 after; 2 step 0 of 1 after; 3 step 0 of 2 after; ");
  EXPECT_FALSE(generator.awaited());
  EXPECT_EQ(words(generator.next_column()), "4 step 4 of 0 after 0; 5 step 4 of 1 after 0; ");
  ASSERT_TRUE(generator.awaited());
  EXPECT_EQ(generator.awaited()->task, 4);
  EXPECT_EQ(words(generator.next_column(std::vector<int32_t>{1})),
            "6 part 2 of 0 after 3; 7 step 5 of 0 after 0 6; 8 step 4 of 2 after 0; ");
  EXPECT_EQ(generator.awaited()->task, 5);
  EXPECT_EQ(words(generator.next_column(std::vector<int32_t>{0, 1})),
            "9 part 1 of 1 after 3; 10 step 5 of 1 after 0 9 6; ");
  EXPECT_EQ(generator.awaited()->task, 8);
  EXPECT_EQ(words(generator.next_column({})), "11 step 5 of 2 after 0; ");
  EXPECT_FALSE(generator.has_column());
}

}  // namespace
}  // namespace sluice
