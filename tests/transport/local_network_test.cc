// Ranks in one process: whole messages in order, and what a rank that is cut off or held does to
// the others.
#include "src/transport/local_network.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <thread>

namespace sluice {
namespace {

std::string all_of(Transport& from) {
  std::string out;
  while (auto message = from.receive()) out += std::to_string(message->from) + message->bytes + " ";
  return out;
}

TEST(LocalNetwork, DeliversWholeMessagesInOrder) {
  LocalNetwork network(3);
  const auto a = network.join(0), b = network.join(1), c = network.join(2);
  EXPECT_EQ(b->rank(), 1);
  EXPECT_EQ(b->size(), 3);
  a->send(1, "x");
  a->send(1, "");
  c->send(1, std::string("\0y", 2));
  a->send(0, "self");
  EXPECT_EQ(all_of(*b), "0x 0 2" + std::string("\0y", 2) + " ");
  EXPECT_EQ(all_of(*a), "0self ");
  EXPECT_EQ(all_of(*b), "");
}

TEST(LocalNetwork, WhatIsCutOffIsLostAndWhatIsHeldComesLate) {
  LocalNetwork network(2);
  const auto a = network.join(0), b = network.join(1);
  network.hold(1, true);
  a->send(1, "1");
  b->send(0, "2");
  EXPECT_EQ(all_of(*a) + all_of(*b), "");
  network.hold(1, false);
  EXPECT_EQ(all_of(*a), "12 ");
  EXPECT_EQ(all_of(*b), "01 ");
  a->send(1, "3");
  network.cut_off(1);
  b->send(0, "4");
  a->send(1, "5");
  EXPECT_EQ(all_of(*a) + all_of(*b), "");
}

TEST(LocalNetwork, ThreadsMaySendAtTheSameTime) {
  constexpr int kEach = 2000;
  LocalNetwork network(3);
  const auto to = network.join(0);
  const auto sender = [&network](int rank) {
    return std::jthread([end = network.join(rank)] {
      for (int i = 0; i < kEach; ++i) end->send(0, std::to_string(i));
    });
  };
  const std::jthread one = sender(1), two = sender(2);
  std::map<int, int> next;
  for (int got = 0; got < 2 * kEach;)
    if (auto message = to->receive()) {
      EXPECT_EQ(message->bytes, std::to_string(next[message->from]++));
      ++got;
    }
  EXPECT_EQ(next[1], kEach);
  EXPECT_EQ(next[2], kEach);
}

std::map<std::string, std::string> environment;
const char* variable(const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? nullptr : it->second.c_str();
}

TEST(StartedByMpi, IsWhatTheVariablesSay) {
  const auto is_started = [](std::map<std::string, std::string> variables) {
    environment = std::move(variables);
    return is_started_by_mpi(variable);
  };
  EXPECT_FALSE(is_started({}));
  EXPECT_TRUE(is_started({{"OMPI_COMM_WORLD_SIZE", "4"}}));
  EXPECT_FALSE(is_started({{"OMPI_COMM_WORLD_SIZE", "1"}})) << "mpirun -n 1";
  EXPECT_TRUE(is_started({{"PMIX_RANK", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}));
  EXPECT_FALSE(is_started({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}})) << "srun without --mpi";
  EXPECT_FALSE(is_started({{"PMIX_RANK", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "1"}}));
}

}  // namespace
}  // namespace sluice
