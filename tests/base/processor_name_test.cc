#include "src/base/processor_name.h"

#include <gtest/gtest.h>

#include <sstream>

namespace sluice {
namespace {

std::string name_in(const std::string& text) {
  std::istringstream in(text);
  return processor_name(in);
}

TEST(ProcessorName, IsWhatTheSystemSays) {
  EXPECT_EQ(name_in("processor\t: 0\nmodel name\t: AMD EPYC 9B14\nflags\t: fpu\n"),
            "AMD EPYC 9B14");
  EXPECT_EQ(name_in("processor\t: 0\nmodel name\t:\n"), "CPU");
  EXPECT_EQ(name_in("model name"), "CPU");
  EXPECT_EQ(name_in(""), "CPU");
  EXPECT_FALSE(processor_name().empty());
}

TEST(ProcessorName, OfAnArmCoreIsReadFromItsNumbers) {
  const std::string head = "processor\t: 0\nFeatures\t: fp asimd asimddp\n";
  EXPECT_EQ(name_in(head + "CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"), "Neoverse V2");
  EXPECT_EQ(name_in(head + "CPU implementer\t: 0x99\nCPU part\t: 0x001\n"), "ARM core 0x99/0x001");
  EXPECT_EQ(name_in(head + "CPU implementer\t: 0x41\n"), "CPU");
}

}  // namespace
}  // namespace sluice
