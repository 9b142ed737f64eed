#pragma once
// CRC32C (Castagnoli, reflected polynomial 0x82f63b78), the packed store's checksum. Uses the
// processor's instruction where there is one and tables elsewhere; both give the same numbers.
// Thread safe, allocates nothing.
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::io {

/// CRC32C of the bytes that gave `crc` followed by `bytes`; start with 0. crc32c("123456789") ==
/// 0xe3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0) noexcept;
/// The table version alone: for processors without the instruction, and for tests.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc = 0) noexcept;

}  // namespace sluice::io
