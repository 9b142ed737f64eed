// Runs every test of the program with the order of threads that SLUICE_THREAD_ORDER names
// (host_grid.h): ctest runs the program once for each of some orders.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/cuda/shim/host_driver.h"

namespace sluice::cuda {
namespace {

class InOrder final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    if (const char* order = std::getenv("SLUICE_THREAD_ORDER"))
      host::set_seed(std::strtoull(order, nullptr, 10));
  }
};

[[maybe_unused]] const bool is_listening = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new InOrder);
  return true;
}();

}  // namespace
}  // namespace sluice::cuda
