#pragma once
// What every runner of LayerOps does alike, whatever it computes on: which task and micro-batch are
// at hand, where its weights, pages and rows are, which rows have a rounded copy, and which
// operators of the sublayer's program the task asks for: all, or those on one side of attention on
// the host. One thread at a time.
#include <functional>
#include <span>
#include <vector>

#include "src/engine/sublayer_runner.h"

namespace sluice {

/// A chunk that is attended where its runner computes, and where its pages begin among all chunks'.
struct ChunkPages {
  const Chunk* chunk;
  size_t first_page;
};

/// Which rows a copy for products was made of, until their memory is written.
class CopiedRows {
 public:
  void set(const Rows& rows) noexcept;
  bool are(const Rows& rows) const noexcept { return source_ == rows.data; }
  void forget() noexcept { source_ = nullptr; }
  /// `rows` have been written.
  void written(const Rows& rows) noexcept;

 private:
  const float* source_ = nullptr;
  int64_t elements_ = 0;
};

class OperatorRunner : public SublayerRunner, protected LayerOps {
 public:
  int64_t exchanged_down_bytes() const noexcept final { return exchanged_down_; }
  int64_t exchanged_up_bytes() const noexcept final { return exchanged_up_; }

 protected:
  explicit OperatorRunner(const RunnerParts& parts) : parts_(parts) {}

  const SublayerShape& sublayer_of(const Task& task) const {
    return parts_.model->shape().sublayers[static_cast<size_t>(task.sublayer)];
  }
  /// Makes a task's sublayer and rows the ones at hand.
  void begin(const Task& task, const MicroBatch& batch, size_t batch_index,
             LogitsConsumer& consumer);

  /// Executes what the task asks for of the sublayer's program; its slots lie in `area`, each with
  /// room for `padded_rows` rows.
  void compute(std::span<std::byte> area, int64_t padded_rows);

  /// Of the sublayer's weights, by the program's index.
  const float* vector_or_null(int32_t weight) const;
  MatrixView matrix(int32_t weight) const;

  /// The chunks that are attended here, all but the host's; page_addresses_ has their pages in
  /// `layer`.
  std::vector<ChunkPages> device_chunks(int64_t layer);
  /// What the host needs, and what the second walk needs of the first, put into the exchange slot:
  /// `copy` brings `count` rows of `from` to contiguous rows at `to`.
  using RowCopy = std::function<void(float* to, const Rows& from, int64_t first, int64_t count)>;
  void keep_for_host(Rows q, Rows k, Rows v, Rows out, const RowCopy& copy) const;

  RunnerParts parts_;
  const SublayerShape* sublayer_ = nullptr;
  const MicroBatch* batch_ = nullptr;
  LogitsConsumer* consumer_ = nullptr;
  Task task_;
  std::vector<HiddenStore::Piece> hidden_;
  int64_t rows_ = 0;    // of slots
  CopiedRows rounded_;  // what has a copy of 16 bits
  int64_t exchanged_down_ = 0;
  int64_t exchanged_up_ = 0;
  std::vector<std::byte*> page_addresses_;

 private:
  Rows rows_of(const View& view) const;
  void execute(const Operator& op);

  std::vector<Rows> slots_;  // of the program at hand
};

}  // namespace sluice
