#pragma once
// The recorded runs of tests/fixtures/routing. One thread.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "src/cache/routing_trace.h"

namespace sluice {

/// A file of the folder; empty (and a failed expectation) where it can't be read.
inline std::string routing_file_text(const std::string& name) {
  const std::string path = std::string(SLUICE_FIXTURES) + "/routing/" + name + ".csv";
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline RoutingTrace routing_file(const std::string& name) {
  return parse_routing_trace(routing_file_text(name), name);
}

}  // namespace sluice
