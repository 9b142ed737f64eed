// Layers whose experts have slots: what a pass asks for comes when its route has run, or was
// guessed before, into slots that nobody uses any more; a pass that does not ask has all experts,
// in slots or in the ring, or, where slots are below a device, all that are not resident in the
// ring.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

using Visit = std::tuple<int64_t, int32_t, int32_t>;  // pass, sublayer, micro-batch

struct RoutedStream {
  Stream stream;
  std::map<Visit, std::set<int32_t>> routed;
  std::vector<bool> demands;  // [pass]
  int64_t asked = 0, found = 0;
  GuessCounts guesses;
};

// For layers of as many matrices as the first that has slots, where nothing stops on the way there.
void add_guesses(std::mt19937& random, bool has_device, ScheduleShape& shape) {
  std::optional<size_t> home;
  for (size_t i = 0; i < shape.sublayers.size(); ++i) {
    ScheduleExperts& experts = shape.sublayers[i].experts;
    if (experts.experts == 0 || (has_device && !experts.is_below)) continue;
    if (!home) {
      home = i;
      experts.guess_slots = static_cast<int64_t>(random() % 9);
    }
    const ScheduleExperts& of = shape.sublayers[*home].experts;
    if (of.guess_slots > 0 && experts.first_parts.size() == of.first_parts.size())
      experts.guess_home = static_cast<int32_t>(*home);
  }
}

// Where all passes ask, the ring is as large as the other parts want it.
void add_experts(std::mt19937& random, bool has_device, bool always_asked, ScheduleShape& shape) {
  shape.weight_ring_bytes = ring_for(shape, static_cast<int>(random() % 3));
  for (ScheduleSublayer& sublayer : shape.sublayers) {
    if (sublayer.has_attention || random() % 3 == 0) continue;
    ScheduleExperts& experts = sublayer.experts;
    experts.experts = 2 + static_cast<int64_t>(random() % 11);
    experts.is_below = has_device && random() % 2 == 0;
    experts.is_always_asked = always_asked;
    if (random() % 2 == 0)
      experts.resident =
          static_cast<int64_t>(random() % static_cast<uint64_t>(experts.experts - 1));
    experts.slots =
        1 + static_cast<int64_t>(random() % static_cast<uint64_t>(experts.others() - 1));
    for (size_t matrix = 1 + random() % 3; matrix > 0; --matrix) {
      experts.first_parts.push_back(static_cast<int32_t>(sublayer.parts.size()));
      SchedulePart part{4096 * (1 + static_cast<int64_t>(random() % 5)),
                        !has_device || experts.is_below || random() % 2 == 0};
      for (part.expert = static_cast<int32_t>(experts.resident); part.expert < experts.experts;
           ++part.expert)
        sublayer.parts.push_back(part);
      if (shape.paths.weights_from_disk.stops_between() > 0)
        shape.host_ring_bytes = std::max(shape.host_ring_bytes, part.bytes);
    }
  }
  if (!always_asked) shape.weight_ring_bytes = ring_for(shape, static_cast<int>(random() % 3));
  add_guesses(random, has_device, shape);
  shape.expert_decay = random() % 2 == 0 ? 0.9 : 0.1;
}

Routed random_route(std::mt19937& random, int64_t experts) {
  Routed out{{}, 1 + static_cast<int64_t>(random() % 4)};
  for (int32_t e = 0; e < static_cast<int32_t>(experts); ++e)
    if (random() % 3 == 0) out.experts.push_back({e, 1 + static_cast<int32_t>(random() % 3)});
  if (out.experts.empty()) out.experts.push_back({0, 1});
  return out;
}

RoutedStream random_routed_stream(std::mt19937& random, bool has_device) {
  RoutedStream out;
  Stream& stream = out.stream;
  stream = has_device ? random_device_stream(random) : random_stream(random, false);
  ScheduleShape& shape = stream.shape;
  const bool always_asked = random() % 4 == 0;
  add_experts(random, has_device, always_asked, shape);
  if (random() % 3 != 0)  // where state comes from disk nothing is guessed
    for (auto& pass : stream.passes)
      for (MicroBatchLoad& load : pass) {
        load.activation_bytes = 0;
        for (auto* all : {&load.state, &load.shared})
          for (StateBytes& bytes : *all) bytes.load = 0;
      }
  stream.tasks.clear();
  stream.first_of_pass.clear();
  ScheduleGenerator generator(shape);
  for (size_t pass = 0; pass < stream.passes.size(); ++pass)
    out.demands.push_back(always_asked || random() % 3 != 0);
  for (size_t pass = 0; pass < stream.passes.size(); ++pass) {
    stream.first_of_pass.push_back(stream.tasks.size());
    const bool is_expected = pass + 1 < out.demands.size() && random() % 4 != 0;
    const bool other = always_asked || random() % 2 == 0;
    generator.begin_pass(
        stream.passes[pass], stream.more_follow[pass],
        {0, 0, out.demands[pass], is_expected ? bool{out.demands[pass + 1]} : other});
    while (generator.has_column()) {
      Routed routed;
      if (const auto route = generator.awaited()) {
        const Task& task = stream.tasks.at(static_cast<size_t>(route->task));
        EXPECT_EQ(task.compute().step, ComputeStep::kUntilRoute);
        EXPECT_EQ(task.micro_batch, route->micro_batch);
        const auto& sublayer = shape.sublayers[static_cast<size_t>(route->sublayer)];
        routed = random_route(random, sublayer.experts.experts);
        for (const ExpertCache::Use& use : routed.experts)
          out.routed[{task.pass, route->sublayer, route->micro_batch}].insert(use.expert);
        if (const int32_t next = guessed_after(shape.sublayers, route->sublayer); next >= 0)
          for (const ExpertCache::Use& use :
               random_route(random, shape.sublayers[static_cast<size_t>(next)].experts.experts)
                   .experts)
            routed.guessed.push_back(use.expert);
      }
      for (Task& task : generator.next_column(routed)) stream.tasks.push_back(std::move(task));
    }
  }
  out.guesses = generator.guess_counts();
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    if (generator.expert_cache(i)) {
      out.asked += generator.expert_counts(i).asked;
      out.found += generator.expert_counts(i).found;
    }
  return out;
}

// What lies in a slot, and who has used it since.
struct Slot {
  struct Held {
    int32_t sublayer, expert;  // whose
    TaskId loaded_by;
  };
  std::map<size_t, Held> loaded;  // by matrix
  std::vector<TaskId> users;
};

// Walks a stream in order of emission and holds each task against what it may count on.
class Walk {
 public:
  explicit Walk(const RoutedStream& routed)
      : routed_(routed), stream_(routed.stream), order_(stream_.tasks) {
    for (const ScheduleSublayer& sublayer : stream_.shape.sublayers) {
      const ScheduleExperts& experts = sublayer.experts;
      auto& slots = slots_.emplace_back(static_cast<size_t>(experts.slots + experts.guess_slots));
      for (int32_t slot = 0; slot < static_cast<int32_t>(experts.slots); ++slot)
        for (size_t matrix = 0; matrix < experts.first_parts.size(); ++matrix)
          slots[static_cast<size_t>(slot)].loaded[matrix] = {
              static_cast<int32_t>(slots_.size()) - 1,
              slot + static_cast<int32_t>(experts.resident), kNoTask};
    }
    ring_.resize(stream_.shape.sublayers.size());
  }

  int64_t loads = 0;

  void check() {
    for (const Task& task : stream_.tasks) {
      const auto& sublayer = stream_.shape.sublayers[static_cast<size_t>(task.sublayer)];
      if (sublayer.experts.experts == 0) continue;
      if (task.kind == TaskKind::kLoadWeights) {
        load(task, sublayer);
      } else if (task.kind == TaskKind::kCompute) {
        compute(task, sublayer);
      }
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const auto& [visit, experts] : routed_.routed)
      EXPECT_EQ(computed_[visit], experts) << "all that go there, and no others";
  }

 private:
  static size_t matrix_of(const ScheduleSublayer& sublayer, int32_t part) {
    size_t found = 0;
    for (size_t matrix = 0; matrix < sublayer.experts.first_parts.size(); ++matrix)
      if (sublayer.experts.first_parts[matrix] <= part) found = matrix;
    return found;
  }

  Slot& slot_at(const Task& task, int32_t home, int32_t slot) {
    return slots_[static_cast<size_t>(home < 0 ? task.sublayer : home)].at(
        static_cast<size_t>(slot));
  }

  void load(const Task& task, const ScheduleSublayer& sublayer) {
    const PartLoad& load = task.part_load();
    const int32_t expert = sublayer.parts[static_cast<size_t>(load.part)].expert;
    const bool is_last_hop = task.lane == Lane::kHostToDevice || load.host_offset < 0;
    if (expert < 0 || !is_last_hop) return;
    ++loads;
    const bool goes_up = sublayer.experts.is_below && task.lane == Lane::kHostToDevice;
    if (load.slot < 0 || goes_up)
      ring_[static_cast<size_t>(task.sublayer)][{task.pass, load.part}] = task.id;
    if (load.slot < 0) return;
    Slot& slot = slot_at(task, load.home, load.slot);
    if (goes_up) return use_matrix(task, slot, matrix_of(sublayer, load.part), expert);
    for (const TaskId user : slot.users) ASSERT_TRUE(order_.ends_before(user, task.id));
    const auto before = slot.loaded.find(matrix_of(sublayer, load.part));
    if (before != slot.loaded.end() && before->second.loaded_by != kNoTask) {
      ASSERT_TRUE(order_.ends_before(before->second.loaded_by, task.id)) << "perhaps for nothing";
    }
    slot.loaded[matrix_of(sublayer, load.part)] = {task.sublayer, expert, task.id};
  }

  void use_matrix(const Task& task, Slot& slot, size_t matrix, int32_t expert) {
    const auto& [of, held, loaded_by] = slot.loaded.at(matrix);
    ASSERT_EQ(of, task.sublayer);
    ASSERT_EQ(held, expert);
    if (loaded_by != kNoTask) {
      ASSERT_TRUE(order_.ends_before(loaded_by, task.id));
    }
    slot.users.push_back(task.id);
  }

  void use(const Task& task, const ScheduleSublayer& sublayer, const ExpertPlace& place) {
    ASSERT_EQ(place.slot < 0, sublayer.experts.is_resident(place.expert));
    if (place.slot < 0) return;
    Slot& slot = slot_at(task, place.home, place.slot);
    for (size_t matrix = 0; matrix < sublayer.experts.first_parts.size(); ++matrix)
      use_matrix(task, slot, matrix, place.expert);
  }

  void compute(const Task& task, const ScheduleSublayer& sublayer) {
    const ComputeWork& work = task.compute();
    const Visit visit{task.pass, task.sublayer, task.micro_batch};
    const bool demands = routed_.demands[static_cast<size_t>(task.pass)];
    if (!demands) {
      ASSERT_EQ(work.step, ComputeStep::kWhole);
      return compute_whole(task, sublayer);
    }
    if (work.step == ComputeStep::kUntilRoute) {
      until_[visit] = task.id;
      return;
    }
    ASSERT_TRUE(order_.ends_before(until_.at(visit), task.id));
    if (work.step == ComputeStep::kAfterRoute) {
      for (const TaskId one : answers_[visit]) ASSERT_TRUE(order_.ends_before(one, task.id));
      return;
    }
    ASSERT_EQ(work.step, ComputeStep::kSomeExperts);
    answers_[visit].push_back(task.id);
    for (const ExpertPlace& place : work.experts) {
      use(task, sublayer, place);
      ASSERT_TRUE(computed_[visit].insert(place.expert).second) << "once";
    }
  }

  void compute_whole(const Task& task, const ScheduleSublayer& sublayer) {
    std::set<int32_t> held;
    for (const ExpertPlace& place : task.compute().experts) {
      use(task, sublayer, place);
      held.insert(place.expert);
    }
    const ScheduleExperts& layer = sublayer.experts;
    ASSERT_EQ(std::ssize(held), layer.is_below ? 0 : layer.slots);
    for (const int32_t first : layer.first_parts)
      for (auto e = static_cast<int32_t>(layer.resident); e < layer.experts; ++e) {
        const int32_t part = first + layer.turn_of(e);
        const int64_t offset = task.compute().part_offsets[static_cast<size_t>(part)];
        ASSERT_EQ(offset >= 0, !held.contains(e));
        if (offset < 0) continue;
        const TaskId load = ring_[static_cast<size_t>(task.sublayer)].at({task.pass, part});
        ASSERT_TRUE(order_.ends_before(load, task.id));
      }
  }

  const RoutedStream& routed_;
  const Stream& stream_;
  SureOrder order_;
  std::vector<std::vector<Slot>> slots_;
  std::vector<std::map<std::pair<int64_t, int32_t>, TaskId>> ring_;
  std::map<Visit, TaskId> until_;
  std::map<Visit, std::vector<TaskId>> answers_;
  std::map<Visit, std::set<int32_t>> computed_;
};

TEST(ExpertColumns, EveryTaskHasTheExpertsThatItComputes) {
  std::mt19937 random(51);
  int64_t asked = 0, found = 0, loads = 0;
  GuessCounts guesses;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const RoutedStream routed = random_routed_stream(random, round % 2 == 0);
    Walk walk(routed);
    walk.check();
    if (HasFatalFailure()) return;
    asked += routed.asked;
    found += routed.found;
    loads += walk.loads;
    guesses.guessed += routed.guesses.guessed;
    guesses.right += routed.guesses.right;
    ASSERT_EQ(simulate(routed.stream.tasks, random).end.size(), routed.stream.tasks.size());
  }
  EXPECT_GT(asked, 3000);
  EXPECT_GT(found, 1000);
  EXPECT_GT(loads, 5000);
  EXPECT_GT(guesses.right, 40);
  EXPECT_GT(guesses.guessed, guesses.right + 20) << "some are wrong";
}

std::string words_of(const std::vector<Task>& tasks) {
  std::string out;
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kLoadWeights) {
      const PartLoad& load = task.part_load();
      out += std::to_string(task.id) + " part " + std::to_string(load.part);
      if (load.slot >= 0) out += " to slot " + std::to_string(load.slot);
      if (load.home >= 0) out += " of " + std::to_string(load.home);
    } else {
      out += std::to_string(task.id) + " step " +
             std::to_string(static_cast<int>(task.compute().step));
      for (const ExpertPlace& place : task.compute().experts)
        out += " " + std::to_string(place.expert) + "@" + std::to_string(place.slot) +
               (place.home >= 0 ? "of" + std::to_string(place.home) : "");
    }
    out += " after";
    for (const TaskId wait : task.waits) out += " " + std::to_string(wait);
    out += "; ";
  }
  return out;
}

ScheduleShape small_shape() {
  ScheduleSublayer routed;
  routed.parts = {{4096}};
  routed.experts = {4, 2, {1}};
  for (int32_t e = 0; e < 4; ++e) routed.parts.push_back({512, true, ~uint32_t{0}, e});
  ScheduleShape shape;
  shape.sublayers = {{{}, false}, routed};
  shape.weight_ring_bytes = 16384;
  return shape;
}

TEST(ExpertColumns, WrittenOutWhatIsThereIsComputedWhileTheOthersLoad) {
  ScheduleGenerator generator(small_shape());
  generator.begin_pass({{}, {}}, false, {0, 0, true, true});
  EXPECT_EQ(words_of(generator.next_column()), "0 part 0 after; 1 step 0 after; 2 step 0 after; ");
  EXPECT_FALSE(generator.awaited());
  EXPECT_EQ(words_of(generator.next_column()), "3 step 4 after 0; ");
  ASSERT_TRUE(generator.awaited());
  EXPECT_EQ(generator.awaited()->task, 3);
  EXPECT_EQ(words_of(generator.next_column({{{0, 1}, {3, 1}}, 1})),
            "4 step 5 0@0 after 0; 5 part 4 to slot 1 after; 6 step 5 3@1 after 5; "
            "7 step 6 after 0; 8 step 4 after 0; ");
  EXPECT_EQ(generator.awaited()->task, 8);
  // Three of them in two slots: one after the other where one was that is worth less.
  EXPECT_EQ(words_of(generator.next_column({{{1, 1}, {2, 1}, {3, 1}}, 1})),
            "9 step 5 3@1 after 0; 10 part 2 to slot 0 after 4; 11 step 5 1@0 after 10; "
            "12 part 3 to slot 0 after 11; 13 step 5 2@0 after 12; 14 step 6 after 0; ");
  EXPECT_FALSE(generator.has_column());
}

// Two routed layers of four experts and two slots; the first has room for two guesses.
ScheduleShape guessing_shape() {
  ScheduleShape shape = small_shape();
  shape.sublayers[0] = shape.sublayers[1];
  for (ScheduleSublayer& sublayer : shape.sublayers) {
    sublayer.parts[0].bytes = 4096;
    sublayer.experts.guess_home = 0;
  }
  shape.sublayers[0].experts.guess_slots = 2;
  return shape;
}

TEST(ExpertColumns, WrittenOutARightGuessChangesPlacesWithASlot) {
  ScheduleGenerator generator(guessing_shape());
  generator.begin_pass({{}}, true, {0, 0, true, true});
  EXPECT_EQ(words_of(generator.next_column()),
            "0 part 0 after; 1 part 0 after; 2 step 4 after 0; ");
  // Expert 3 of the next layer is guessed, and loads behind what this one asks for. Its expert 1 is
  // there, and half of the room is left free.
  EXPECT_EQ(words_of(generator.next_column({{{0, 1}, {2, 1}}, 1, {1, 3, 2}})),
            "3 step 5 0@0 after 0; 4 part 3 to slot 1 after; 5 step 5 2@1 after 4; "
            "6 step 6 after 0; 7 part 4 to slot 2 of 0 after 4; ");
  EXPECT_TRUE(generator.take_dropped().empty());
  EXPECT_EQ(words_of(generator.next_column()), "8 part 0 after 6; 9 step 4 after 1; ");
  // It is where it was loaded, and that is the layer's slot from now on; expert 2 waits for room.
  EXPECT_EQ(words_of(generator.next_column({{{2, 1}, {3, 1}}, 1})),
            "10 part 3 to slot 1 after; 11 step 5 2@1 after 10; 12 step 5 3@2of0 after 7; "
            "13 step 6 after 1; ");
  EXPECT_EQ(generator.guess_counts().guessed, 1);
  EXPECT_EQ(generator.guess_counts().right, 1);
  const ExpertMemory memory = generator.expert_memory();
  EXPECT_EQ(memory.slots[1][0].home, 0);
  EXPECT_EQ(memory.slots[1][0].slot, 2);
}

TEST(ExpertColumns, WrittenOutAWrongGuessIsDroppedAndItsRoomTakenAgain) {
  ScheduleGenerator generator(guessing_shape());
  generator.begin_pass({{}}, true, {0, 0, true, true});
  generator.next_column();
  generator.next_column({{{0, 1}}, 1, {3}});
  generator.next_column();
  EXPECT_TRUE(generator.take_dropped().empty());
  generator.next_column({{{0, 1}}, 1});
  EXPECT_EQ(generator.take_dropped().size(), 1u);
  EXPECT_TRUE(generator.take_dropped().empty());
  EXPECT_EQ(generator.guess_counts().guessed, 1);
  EXPECT_EQ(generator.guess_counts().right, 0);
  const ExpertMemory memory = generator.expert_memory();
  for (int32_t slot = 0; slot < 2; ++slot) {
    EXPECT_EQ(memory.slots[1][static_cast<size_t>(slot)].home, 1);
    EXPECT_EQ(memory.slots[1][static_cast<size_t>(slot)].slot, slot);
  }
}

// Guesses would be in their way.
TEST(ExpertColumns, NothingIsGuessedWhereStateComesFromDisk) {
  ScheduleGenerator generator(guessing_shape());
  MicroBatchLoad load;
  load.activation_bytes = 64;
  generator.begin_pass({load}, true, {0, 0, true, true});
  generator.next_column();
  generator.next_column({{{0, 1}}, 1, {3}});
  EXPECT_EQ(generator.guess_counts().guessed, 0);
}

TEST(ExpertColumns, WrittenOutALargePassHasThoseInSlotsAndTheOthersInTheRing) {
  ScheduleGenerator generator(small_shape());
  generator.begin_pass({{}}, false, {0, 0, true, true});
  generator.next_column();
  generator.next_column();
  generator.next_column({{{3, 1}}, 1});
  generator.begin_pass({{}}, false, {0, 0, false, false});
  EXPECT_EQ(words_of(generator.next_column()),
            "6 part 0 after 5; 7 part 2 after 5; 8 part 3 after 5; 9 step 0 after; ");
  EXPECT_EQ(words_of(generator.next_column()), "10 step 0 0@0 3@1 after 6 7 8; ");
}

// Expert 0 is on the device; two slots for the others are below it.
TEST(ExpertColumns, WrittenOutBelowADeviceNoExpertThatIsAskedForGoesUp) {
  ScheduleShape shape = small_shape();
  shape.paths = paths_of_device(false);
  shape.host_ring_bytes = 16384;
  ScheduleSublayer& routed = shape.sublayers[1];
  routed.parts.erase(routed.parts.begin() + 1);
  routed.experts = {4, 2, {1}, 1, true};
  ScheduleGenerator generator(shape);
  generator.begin_pass({{}}, false, {0, 0, true, true});
  // A part that every token needs: to host memory, then up.
  EXPECT_EQ(words_of(generator.next_column()),
            "0 part 0 after; 1 part 0 after 0; 2 step 0 after; ");
  EXPECT_EQ(words_of(generator.next_column()), "3 step 4 after 1; ");
  EXPECT_EQ(words_of(generator.next_column({{{0, 1}, {1, 1}, {3, 1}}, 1})),
            "4 step 5 0@-1 1@0 after 1; 5 part 3 to slot 1 after; 6 step 5 3@1 after 5; "
            "7 step 6 after 1; ");
  // A pass that loads all: 1 and 3 go up from their slots, 2 comes from disk.
  generator.begin_pass({{}}, false, {0, 0, false, false});
  EXPECT_EQ(words_of(generator.next_column()),
            "8 part 0 after; 9 part 0 after 8 7; 10 part 1 to slot 0 after 7; 11 part 2 after; "
            "12 part 2 after 11 7; 13 part 3 to slot 1 after 7; 14 step 0 after; ");
  EXPECT_EQ(words_of(generator.next_column()), "15 step 0 after 9 10 12 13; ");
  EXPECT_EQ(generator.expert_counts(1).asked, 3);
  EXPECT_EQ(generator.expert_counts(1).found, 2);
  // Who comes next into a slot waits for what has computed with the copy out of it.
  generator.begin_pass({{}}, false, {0, 0, true, true});
  generator.next_column();
  generator.next_column();
  EXPECT_EQ(words_of(generator.next_column({{{2, 1}}, 1})),
            "20 part 2 to slot 1 after 15; 21 step 5 2@1 after 20; 22 step 6 after 17; ");
}

}  // namespace
}  // namespace sluice
