#pragma once
// The recorded runs of tests/fixtures/routing. One thread.
#include <gtest/gtest.h>
#include <zlib.h>

#include <memory>
#include <string>

#include "src/cache/routing_trace.h"

namespace sluice {

/// A file of the folder, unpacked; empty (and a failed expectation) where it can't be read.
inline std::string routing_file_text(const std::string& name) {
  const std::string path = std::string(SLUICE_FIXTURES) + "/routing/" + name + ".csv.gz";
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  EXPECT_NE(file, nullptr) << path;
  std::string text, piece(1 << 16, '\0');
  int bytes = 0;
  while (file && (bytes = gzread(file.get(), piece.data(), 1 << 16)) > 0)
    text.append(piece, 0, static_cast<size_t>(bytes));
  EXPECT_EQ(bytes, 0) << path;
  return text;
}

inline RoutingTrace routing_file(const std::string& name) {
  return parse_routing_trace(routing_file_text(name), name);
}

}  // namespace sluice
