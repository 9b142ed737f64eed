#pragma once
// Whole files read and written in a test's own folder.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/temporary_folder.h"
#include "tests/whole_file.h"

namespace sluice::jobs {

inline std::string read_all(const std::string& path) { return whole_file(path); }

inline void write_all(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.flush()) << path;
}

}  // namespace sluice::jobs
