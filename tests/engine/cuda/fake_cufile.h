#pragma once
// What a test asks of the fake libcufile and learns from it.
#include <cstdint>

struct FakeCufile {
  bool has_no_driver = false;
  bool maps_no_memory = false;
  int64_t fails_after = -1;  ///< reads; -1: never
  int64_t reads = 0;
  int64_t read_bytes = 0;
  int64_t open_drivers = 0;
  int64_t open_files = 0;
  int64_t mapped_ranges = 0;
};

extern "C" FakeCufile* fake_cufile();
