#pragma once
// Pieces of work that have nothing to do with each other, on all cores that the process may use.
#include <cstddef>
#include <functional>

namespace sluice {

/// Processors, as the system counts them, that the process may use (sched_getaffinity), at least 1.
int usable_processors() noexcept;

/// Calls body(i) once for every i below `count`, in that order but side by side: on the calling
/// thread and on as many more as there are cores, or fewer where the system grants none. Returns
/// when all have returned. An error that a call throws is thrown again, that of the lowest i where
/// several throw; calls that have not begun by then are left out. A body may call this in turn: its
/// own pieces then take turns with the others on the cores.
void run_side_by_side(size_t count, const std::function<void(size_t)>& body);

}  // namespace sluice
