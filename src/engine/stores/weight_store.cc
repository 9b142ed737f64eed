#include "src/engine/stores/weight_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "kernels/elementwise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/stores/background_read.h"

namespace sluice {

namespace {
constexpr int64_t kMatrixAlignment = 64;
constexpr int64_t kLoadBuffers =
    16;  // pieces in flight while loading: past 64 MiB the disk gets no faster
constexpr int64_t kAlign = io::kDirectAlignment;

std::vector<io::WatchedFiles::File> files_of(const io::Checkpoint& checkpoint) {
  std::vector<io::WatchedFiles::File> files;
  for (const io::CheckpointFile& file : checkpoint.files())
    files.push_back({file.path, file.stamp});
  return files;
}
}  // namespace

WeightStore::WeightStore(const BoundModel& model, const policy::Plan& plan,
                         const WeightReaders& readers, Device* device, Arena& compute_memory,
                         Arena& host_memory)
    : model_(model),
      watched_(files_of(model.checkpoint())),
      engine_(readers.engine),
      gather_engine_(readers.gather),
      direct_engine_(plan.paths.disk_reaches_device() ? readers.direct : nullptr),
      experts_{plan.experts, {}},
      device_(device) {
  SLUICE_ASSERT(!plan.paths.disk_reaches_device() || (device && readers.direct),
                "something reads there");
  for (const io::CheckpointFile& file : model.checkpoint().files()) {
    files_.push_back(engine_.open_for_read(file.path.string()));
    gather_files_.push_back(gather_engine_.open_for_read(file.path.string()));
    if (direct_engine_ && plan.streamed_weight_bytes > 0)
      direct_files_.push_back(direct_engine_->open_for_read(file.path.string()));
  }
  for (const policy::PassClass& one : plan.classes) inplace_.push_back(one.inplace);
  reserve(plan, compute_memory, host_memory);
  for (size_t sublayer = 0; sublayer < model_.shape().sublayers.size(); ++sublayer)
    lay_out_parts(plan, sublayer);
  if (plan.arrival_slot_bytes == 0) return;
  Buffer slots = host_memory.allocate(plan.arrival_slot_bytes * policy::kArrivalSlots,
                                      "weights as they arrive");
  arrivals_ = std::make_unique<ForeignArrivals>(engine_, std::move(slots), plan.arrival_slot_bytes,
                                                readers.repack_threads);
}

bool WeightStore::reads_in_passes() const noexcept {
  for (const auto& sublayer : weights_)
    for (const Weight& weight : sublayer)
      if (weight.split.disk > 0) return true;
  return false;
}

WeightStore::~WeightStore() {
  arrivals_.reset();
  if (read_ring()) engine_.unregister_memory(read_ring().span());
  if (!direct_files_.empty()) direct_engine_->unregister_memory(ring_.span());
  for (io::FileId file : direct_files_) direct_engine_->close(file);
  for (io::FileId file : files_) engine_.close(file);
  for (io::FileId file : gather_files_) gather_engine_.close(file);
}

void WeightStore::reserve(const policy::Plan& plan, Arena& compute_memory, Arena& host_memory) {
  const ModelShape& shape = model_.shape();
  int64_t resident_bytes = 0;
  int64_t slot_bytes = 0;
  int64_t inplace_bytes = 0;
  int64_t host_bytes = 0;
  int64_t vector_floats = 0;
  const auto bytes = [&](const WeightShape& weight, int64_t rows) {
    return round_up(shape.rows_bytes(weight, rows), kMatrixAlignment);
  };
  for (size_t i = 0; i < shape.sublayers.size(); ++i) {
    auto& row = weights_.emplace_back();
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = shape.sublayers[i].weights[w];
      Weight& placed = row.emplace_back();
      placed.split = plan.rows[i][w];
      if (weight.kind == WeightKind::kVector) {
        placed.resident_offset = vector_floats;
        vector_floats += round_up(weight.cols, 16);
        continue;
      }
      if (weight.shares_table) {  // the token table is the first weight
        placed.resident_offset = weights_[0][0].resident_offset;
        placed.host_offset = weights_[0][0].host_offset;
        continue;
      }
      if (weight.experts > 0 && has_slots(i)) {
        place_slots(plan, i, w, slot_bytes);
        placed.resident_offset = resident_bytes;
        resident_bytes += bytes(weight, experts_.layers[i].resident * weight.expert_rows());
        continue;
      }
      placed.resident_offset = resident_bytes;
      placed.inplace_offset = inplace_bytes;
      placed.host_offset = host_bytes;
      resident_bytes += bytes(weight, placed.split.resident);
      inplace_bytes += bytes(weight, placed.split.inplace);
      host_bytes += bytes(weight, placed.split.host);
    }
  }
  resident_ = compute_memory.allocate(resident_bytes, "resident weights");
  experts_.slots =
      (device_ ? host_memory : compute_memory).allocate(slot_bytes, "experts in slots");
  vectors_ = compute_memory.allocate(vector_floats * 4, "norms and biases");
  ring_ = compute_memory.allocate(plan.ring_bytes, "weight ring");
  host_.inplace = host_memory.allocate(inplace_bytes, "weights computed in place");
  host_.rows = host_memory.allocate(host_bytes, "weights sent up");
  host_.ring = host_memory.allocate(plan.host_ring_bytes, "weight ring");
  if (read_ring()) engine_.register_memory(read_ring().span());
  if (!direct_files_.empty()) direct_engine_->register_memory(ring_.span());
}

// A slot takes an expert's matrix as the disk gives it, in whole blocks.
void WeightStore::place_slots(const policy::Plan& plan, size_t sublayer, size_t weight,
                              int64_t& slot_bytes) {
  Weight& placed = weights_[sublayer][weight];
  const auto& parts = plan.parts[sublayer];
  const auto is_mine = [&](const policy::PlanPart& part) {
    return part.weight == static_cast<int64_t>(weight);
  };
  placed.first_part =
      static_cast<size_t>(std::find_if(parts.begin(), parts.end(), is_mine) - parts.begin());
  placed.slots_offset = slot_bytes;
  placed.slot_bytes = parts[placed.first_part].bytes;
  const ScheduleExperts& layer = experts_.layers[sublayer];
  slot_bytes += (layer.slots + layer.guess_slots) * placed.slot_bytes;
}

void WeightStore::lay_out_parts(const policy::Plan& plan, size_t sublayer) {
  std::vector<Part>& parts = parts_.emplace_back();
  for (const policy::PlanPart& planned : plan.parts[sublayer]) {
    SLUICE_ASSERT(!planned.from_disk || planned.packed_bytes > 0 ||
                      !model_.foreign(sublayer, static_cast<size_t>(planned.weight)),
                  "what can't be read by rows stays in memory");
    parts.push_back(planned.packed_bytes > 0
                        ? packed_part(planned, sublayer, plan.arrival_slot_bytes)
                    : planned.from_disk ? disk_part(planned, sublayer)
                                        : host_part(planned, sublayer));
    parts.back().expert = planned.expert;
  }
}

WeightStore::Part WeightStore::host_part(const policy::PlanPart& planned, size_t sublayer) const {
  const auto w = static_cast<size_t>(planned.weight);
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[w];
  const auto bytes = [&](int64_t rows) { return model_.shape().rows_bytes(shape, rows); };
  const Weight& placed = weights_[sublayer][w];
  const int64_t inplace_row = planned.row - placed.split.resident;
  const int64_t host_row = inplace_row - placed.split.inplace;
  Part part{w, planned.rows, false, host_row < 0, bytes(planned.rows)};
  part.offset = host_row < 0 ? placed.inplace_offset + bytes(inplace_row)
                             : placed.host_offset + bytes(host_row);
  part.required_bytes = part.bytes;
  return part;
}

// Of experts, as many ranges as lie apart.
WeightStore::Part WeightStore::disk_part(const policy::PlanPart& planned, size_t sublayer) const {
  const auto w = static_cast<size_t>(planned.weight);
  const ModelShape& model = model_.shape();
  const WeightShape& shape = model.sublayers[sublayer].weights[w];
  const WeightFormat format = model.format_of(shape);
  const int64_t of_one = shape.expert_rows();
  const bool leaves_no_gaps =
      shape.experts == 0 || format.bytes(of_one, shape.cols) == model.expert_bytes(shape);
  Part part{w, planned.rows, true, false, 0};
  int64_t begin_of_last = 0;  // its first row's, in its file
  for (int64_t row = planned.row, rows = 0; row < planned.row + planned.rows; row += rows) {
    rows = std::min(of_one - row % of_one, planned.row + planned.rows - row);
    const io::TensorEntry& tensor = model_.tensor(sublayer, w, static_cast<size_t>(row / of_one));
    const int64_t begin = tensor.offset + format.bytes(row % of_one, shape.cols);
    const int64_t bytes = format.bytes(rows, shape.cols);
    const auto file = static_cast<size_t>(tensor.file_index);
    const bool goes_on = leaves_no_gaps && !part.ranges.empty() &&
                         part.ranges.back().file == file &&
                         begin_of_last + part.ranges.back().row_bytes == begin;
    if (!goes_on) {
      begin_of_last = begin;
      Range next;
      next.file = file;
      if (!part.ranges.empty()) {
        const Range& last = part.ranges.back();
        next.place = last.place + last.bytes;
        next.row_place = last.row_place + round_up(last.row_bytes, ModelShape::kExpertAlignment);
      }
      part.ranges.push_back(next);
    }
    Range& range = part.ranges.back();
    range.rows += rows;
    range.row_bytes += bytes;
    const io::Window window = io::aligned_window(begin_of_last, range.row_bytes);
    range.offset = window.offset;
    range.bytes = window.bytes;
    range.skipped_bytes = begin_of_last - window.offset;
  }
  part.bytes = part.ranges.back().place + part.ranges.back().bytes;
  part.required_bytes = part.ranges.back().row_place + part.ranges.back().row_bytes;
  SLUICE_ASSERT(part.bytes <= planned.bytes, "the plan leaves room for alignment");
  return part;
}

int64_t WeightStore::moved_bytes(const Task& task) const noexcept {
  const Part& part = part_of(task);
  return part.packed_row < 0 || task.lane == Lane::kDiskRead ? part.bytes : part.required_bytes;
}

policy::RowSplit WeightStore::loaded_rows(size_t sublayer, size_t weight) const noexcept {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  if (shape.experts == 0 || !has_slots(sublayer)) return weights_[sublayer][weight].split;
  const int64_t resident = experts_.layers[sublayer].resident * shape.expert_rows();
  return {resident, 0, 0, shape.rows - resident};  // the others: load_slots()
}

// Everything that is loaded once, in pieces of whole rows with one home each, in checkpoint order
// of a pass.
std::vector<WeightStore::Piece> WeightStore::resident_pieces(int64_t piece_bytes) const {
  const ModelShape& shape = model_.shape();
  std::vector<Piece> pieces;
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = shape.sublayers[i].weights[w];
      if (weight.shares_table || model_.foreign(i, w)) continue;
      const policy::RowSplit split = loaded_rows(i, w);
      const int64_t of_one = weight.expert_rows();
      int64_t begin = 0;
      for (const int64_t home : {split.resident, split.inplace, split.host}) {
        for (int64_t row = begin, rows = 0; row < begin + home; row += rows) {
          rows = std::min(of_one - row % of_one, begin + home - row);
          add_pieces(i, w, row, rows, piece_bytes, pieces);
        }
        begin += home;
      }
    }
  return pieces;
}

// Rows of one tensor with one home.
void WeightStore::add_pieces(size_t sublayer, size_t weight, int64_t row, int64_t rows,
                             int64_t piece_bytes, std::vector<Piece>& pieces) const {
  const ModelShape& model = model_.shape();
  const WeightShape& shape = model.sublayers[sublayer].weights[weight];
  const int64_t of_one = shape.expert_rows();
  const io::TensorEntry& tensor =
      model_.tensor(sublayer, weight, static_cast<size_t>(row / of_one));
  // Vectors have element types of their own.
  const WeightFormat format = shape.kind == WeightKind::kVector ? WeightFormat::plain(tensor.dtype)
                                                                : model.format_of(shape);
  int64_t step = std::max<int64_t>(piece_bytes / format.row_bytes(shape.cols), 1);
  if (step >= kernels::kRowGranule) step = round_down(step, kernels::kRowGranule);
  SLUICE_ASSERT(step >= std::min(rows, kernels::kRowGranule),
                "the staging takes a granule of rows");
  for (int64_t at = row; at < row + rows; at += step) {
    const int64_t count = std::min(step, row + rows - at);
    pieces.push_back({sublayer, weight, at, count, file(tensor),
                      tensor.offset + format.bytes(at % of_one, shape.cols),
                      format.bytes(count, shape.cols)});
  }
}

void WeightStore::load_resident(std::span<std::byte> staging, const HeldLists& held,
                                const std::function<void(const LoadProgress&)>& progress,
                                std::stop_token cancel) {
  const auto started = std::chrono::steady_clock::now();
  // The ring is idle until the first pass: it is the better staging when it is larger.
  if (read_ring().size() > static_cast<int64_t>(staging.size())) staging = read_ring().span();
  const int64_t least = load_staging_bytes(model_.shape()) / 2;
  const auto buffers =
      std::clamp<int64_t>(static_cast<int64_t>(staging.size()) / least, 2, kLoadBuffers);
  const int64_t buffer_bytes = round_down(static_cast<int64_t>(staging.size()) / buffers, kAlign);
  const std::vector<Piece> pieces = resident_pieces(std::min(buffer_bytes - 2 * kAlign, 8 * kMiB));
  LoadProgress state;
  state.total_bytes = repacked_bytes();
  for (const Piece& piece : pieces) state.total_bytes += piece.bytes;
  for (const ScheduleExperts& layer : experts_.layers) {
    const auto& parts = parts_[static_cast<size_t>(&layer - experts_.layers.begin())];
    for (const int32_t first : layer.first_parts)
      state.total_bytes += layer.slots * parts[static_cast<size_t>(first)].required_bytes;
  }
  const auto loaded = [&](int64_t bytes) {
    state.done_bytes += bytes;
    state.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    if (progress) progress(state);
  };
  std::vector<BackgroundRead> reads(static_cast<size_t>(buffers));
  const auto start = [&](size_t index) {
    const Piece& piece = pieces[index];
    const io::Window window = io::aligned_window(piece.offset, piece.bytes);
    const auto buffer = static_cast<int64_t>(index % reads.size());
    const io::Extent extent{piece.file, window.offset, window.bytes,
                            staging.data() + buffer * buffer_bytes,
                            piece.offset + piece.bytes - window.offset};
    reads[static_cast<size_t>(buffer)].start(engine_, {&extent, 1});
  };
  for (size_t i = 0; i < std::min(pieces.size(), reads.size()); ++i) start(i);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const size_t buffer = i % reads.size();
    reads[buffer].wait();
    if (cancel.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped while loading weights");
    take_rows(piece.sublayer, piece.weight, piece.row, piece.rows,
              staging.data() + static_cast<int64_t>(buffer) * buffer_bytes + piece.offset % kAlign);
    if (i + reads.size() < pieces.size()) start(i + reads.size());
    loaded(piece.bytes);
  }
  load_slots(held, loaded, cancel);
  load_repacked(staging, loaded, cancel);
}

std::byte* WeightStore::slot_of(const Part& part, size_t sublayer, int32_t slot,
                                int32_t home) const {
  const Weight& placed = weights_[home < 0 ? sublayer : static_cast<size_t>(home)][part.weight];
  return experts_.slots.data() + placed.slots_offset + slot * placed.slot_bytes;
}

const WeightStore::Part& WeightStore::part_of_expert(size_t sublayer, int32_t first_part,
                                                     int32_t expert) const {
  return parts_[sublayer]
               [static_cast<size_t>(first_part + experts_.layers[sublayer].turn_of(expert))];
}

// Straight into their slots.
void WeightStore::load_slots(const HeldLists& held, const std::function<void(int64_t)>& loaded,
                             const std::stop_token& cancel) {
  for (size_t sublayer = 0; sublayer < experts_.layers.size(); ++sublayer)
    for (const int32_t first : experts_.layers[sublayer].first_parts) {
      if (cancel.stop_requested())
        throw Error(ErrorKind::kCancelled, "stopped while loading weights");
      std::vector<io::Extent> extents;
      int64_t bytes = 0;
      const bool is_packed =
          part_of_expert(sublayer, first, held[sublayer].front()).packed_row >= 0;
      if (is_packed) load_packed_slots(sublayer, first, held[sublayer]);
      for (int32_t slot = 0; slot < static_cast<int32_t>(experts_.layers[sublayer].slots); ++slot) {
        const Part& part =
            part_of_expert(sublayer, first, held[sublayer][static_cast<size_t>(slot)]);
        add_extents(part, slot_of(part, sublayer, slot), extents);
        bytes += part.required_bytes;
      }
      if (!is_packed) engine_.read_now(extents);
      loaded(bytes);
    }
}

void WeightStore::add_extents(const Part& part, std::byte* to,
                              std::vector<io::Extent>& extents) const {
  for (const Range& range : part.ranges)
    extents.push_back({files_[range.file], range.offset, range.bytes, to + range.place,
                       range.skipped_bytes + range.row_bytes});
}

void WeightStore::take_rows(size_t sublayer, size_t weight, int64_t row, int64_t rows,
                            const std::byte* source) {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  const DType dtype = model_.tensor(sublayer, weight).dtype;
  const Weight& placed = weights_[sublayer][weight];
  if (shape.kind == WeightKind::kVector) {
    std::vector<float> values(static_cast<size_t>(shape.cols));
    kernels::convert(dtype, source, DType::kF32, values.data(), shape.cols);
    for (float& value : values) value += shape.added;
    place(reinterpret_cast<std::byte*>(vectors_.as<float>() + placed.resident_offset),
          reinterpret_cast<const std::byte*>(values.data()), shape.cols * 4);
    return;
  }
  // Rows of one expert at most: nothing lies between them. A table's begin anywhere.
  const bool is_table = shape.kind == WeightKind::kTable;
  const auto offset_of = [&](int64_t first) {
    return is_table ? first * model_.shape().row_bytes(shape)
                    : model_.shape().rows_bytes(shape, first);
  };
  const int64_t bytes = model_.shape().format_of(shape).bytes(rows, shape.cols);
  const int64_t inplace_row = row - placed.split.resident;
  const int64_t host_row = inplace_row - placed.split.inplace;
  if (host_row >= 0)
    std::memcpy(host_.rows.data() + placed.host_offset + offset_of(host_row), source,
                static_cast<size_t>(bytes));
  else if (inplace_row >= 0)
    std::memcpy(host_.inplace.data() + placed.inplace_offset + offset_of(inplace_row), source,
                static_cast<size_t>(bytes));
  else
    place(resident_.data() + placed.resident_offset + offset_of(row), source, bytes);
}

// Into memory that computes.
void WeightStore::place(std::byte* to, const std::byte* source, int64_t bytes) const {
  if (device_)
    device_->load(to, source, bytes);
  else
    std::memcpy(to, source, static_cast<size_t>(bytes));
}

void WeightStore::read_part(const Task& task, io::Completion done) {
  const Part& part = part_of(task);
  const PartLoad& load = task.part_load();
  std::vector<io::Extent> extents;
  const auto sublayer = static_cast<size_t>(task.sublayer);
  if (load.slot >= 0) {
    std::byte* const slot = slot_of(part, sublayer, load.slot, load.home);
    if (part.packed_row >= 0) return read_packed(part, sublayer, slot, std::move(done));
    add_extents(part, slot, extents);
    return engine_.read(extents, std::move(done));
  }
  if (direct_engine_) {  // the rows alone: as copy_part would bring them
    for (const Range& range : part.ranges)
      extents.push_back({direct_files_[range.file], range.offset + range.skipped_bytes,
                         range.row_bytes, ring_.data() + load.offset + range.row_place,
                         range.row_bytes});
    direct_engine_->read(extents, std::move(done));
    return;
  }
  std::byte* to =
      load.host_offset >= 0 ? host_.ring.data() + load.host_offset : ring_.data() + load.offset;
  if (part.packed_row >= 0) return read_packed(part, sublayer, to, std::move(done));
  add_extents(part, to, extents);
  engine_.read(extents, std::move(done));
}

void WeightStore::copy_part(const Task& task, const Device::Copy& copy) const {
  const Part& part = part_of(task);
  const PartLoad& load = task.part_load();
  std::byte* const to = ring_.data() + load.offset;
  // From its first row on: so rows begin where the ring's parts do, aligned.
  if (!part.from_disk) {
    const Buffer& home = part.is_inplace ? host_.inplace : host_.rows;
    copy(to, home.data() + part.offset, part.required_bytes);
    return;
  }
  const std::byte* const from =
      load.slot >= 0 ? slot_of(part, static_cast<size_t>(task.sublayer), load.slot, load.home)
                     : host_.ring.data() + load.host_offset;
  if (part.packed_row >= 0) copy(to, from, part.required_bytes);
  for (const Range& range : part.ranges)
    copy(to + range.row_place, from + range.place + range.skipped_bytes, range.row_bytes);
}

MatrixView MatrixView::expert(int64_t index) const {
  MatrixView one;
  one.format = format;
  one.rows = expert_rows;
  one.cols = cols;
  if (!experts.empty()) {
    const auto e = static_cast<size_t>(index);
    SLUICE_ASSERT(experts[e], "who is computed is there");
    if (are_inplace[e]) {
      one.inplace_rows = expert_rows;
      one.inplace = experts[e];
    } else {
      one.streamed.push_back({experts[e], expert_rows});
    }
    return one;
  }
  const int64_t first = index * expert_rows;
  if (first < resident_rows) {
    one.resident_rows = expert_rows;
    one.resident = resident + index * expert_bytes;
    return one;
  }
  if (first < resident_rows + inplace_rows) {
    one.inplace_rows = expert_rows;
    one.inplace = inplace + (first - resident_rows) / expert_rows * expert_bytes;
    return one;
  }
  // Parts are some rows of one expert, or whole ones.
  int64_t row = resident_rows + inplace_rows;
  for (const StreamedRows& part : streamed) {
    const int64_t begin = std::max(first, row);
    const int64_t end = std::min(first + expert_rows, row + part.rows);
    if (begin < end)
      one.streamed.push_back({part.data + (begin - row) / expert_rows * expert_bytes, end - begin});
    row += part.rows;
  }
  return one;
}

MatrixView WeightStore::matrix(size_t sublayer, size_t weight, const ComputeWork& work) const {
  const std::span<const int64_t> part_offsets = work.part_offsets;
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  const Weight& placed = weights_[sublayer][weight];
  MatrixView view;
  view.format = model_.shape().format_of(shape);
  view.rows = shape.rows;
  view.cols = shape.cols;
  if (shape.experts > 0) {
    view.expert_rows = shape.expert_rows();
    view.expert_bytes = model_.shape().expert_bytes(shape);
  }
  if (shape.experts > 0 && has_slots(sublayer)) {
    find_experts(sublayer, weight, work, view);
    return view;
  }
  view.resident_rows = placed.split.resident;
  if (view.resident_rows > 0) view.resident = resident_.data() + placed.resident_offset;
  view.inplace_rows = placed.split.inplace;
  if (view.inplace_rows > 0) view.inplace = host_.inplace.data() + placed.inplace_offset;
  const std::vector<Part>& parts = parts_[sublayer];
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].weight != weight || part_offsets[i] < 0) continue;
    if (parts[i].is_inplace) view.inplace_rows -= parts[i].rows;
    const std::byte* const data = ring_.data() + part_offsets[i];
    if (parts[i].ranges.empty()) view.streamed.push_back({data, parts[i].rows});
    for (const Range& range : parts[i].ranges)
      view.streamed.push_back(
          {data + (device_ ? range.row_place : range.place + range.skipped_bytes), range.rows});
  }
  return view;
}

// Resident, in slots, and where the pass has loaded all others in the ring.
void WeightStore::find_experts(size_t sublayer, size_t weight, const ComputeWork& work,
                               MatrixView& view) const {
  const Weight& placed = weights_[sublayer][weight];
  const ScheduleExperts& layer = experts_.layers[sublayer];
  const auto first = static_cast<int32_t>(placed.first_part);
  view.experts.resize(static_cast<size_t>(layer.experts));
  view.are_inplace.resize(view.experts.size());
  for (int32_t expert = 0; expert < static_cast<int32_t>(layer.experts); ++expert) {
    const std::byte*& at = view.experts[static_cast<size_t>(expert)];
    if (layer.is_resident(expert)) {
      at = resident_.data() + placed.resident_offset + expert * view.expert_bytes;
      continue;
    }
    const int64_t offset = work.part_offsets[static_cast<size_t>(first + layer.turn_of(expert))];
    if (offset < 0) continue;
    // A device has the rows alone.
    const Part& part = part_of_expert(sublayer, first, expert);
    at = ring_.data() + offset + (device_ ? 0 : part.skipped_bytes());
  }
  for (const ExpertPlace& place : work.experts) {
    if (place.slot < 0) continue;
    const auto expert = static_cast<size_t>(place.expert);
    const Part& part = part_of_expert(sublayer, first, place.expert);
    view.experts[expert] = slot_of(part, sublayer, place.slot, place.home) + part.skipped_bytes();
    view.are_inplace[expert] = layer.is_below;
  }
}

bool WeightStore::has_own_rows(size_t pass_class, size_t sublayer, size_t weight) const noexcept {
  return (*inplace_[pass_class])[sublayer][weight] <
         model_.shape().sublayers[sublayer].weights[weight].rows;
}

const float* WeightStore::vector(size_t sublayer, size_t weight) const {
  return vectors_.as<float>() + weights_[sublayer][weight].resident_offset;
}

WeightStore::ResidentTable WeightStore::resident_table(size_t sublayer, size_t weight) const {
  const Weight& placed = weights_[sublayer][weight];
  return {resident_.data() + placed.resident_offset, placed.split.resident,
          model_.tensor(sublayer, weight).dtype};
}

int64_t WeightStore::gather_staging_bytes(const ModelShape& model) {
  int64_t widest = 0;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kTable) widest = std::max(widest, model.row_bytes(weight));
  // A small model is not charged more than a part of its size.
  const int64_t window = round_up(widest, kAlign) + kAlign;
  return std::clamp<int64_t>(model.weight_bytes() / 64 / window, 8, kGatherStagingRows) * window;
}

int64_t WeightStore::load_staging_bytes(const ModelShape& model) {
  // Past 8 MiB a bigger piece reads no faster; a small model is not charged for a large one's
  // pieces.
  const int64_t piece = std::min(8 * kMiB, model.weight_bytes() / 64);
  int64_t half = 0;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      // Vectors may be f32 in a checkpoint of 16-bit matrices.
      const int64_t row =
          weight.kind == WeightKind::kVector ? weight.cols * 4 : model.row_bytes(weight);
      const int64_t whole = weight.kind == WeightKind::kVector
                                ? weight.rows * row
                                : model.rows_bytes(weight, weight.rows);
      half = std::max(half, std::min(whole, std::max(piece, kernels::kRowGranule * row)));
    }
  return 2 * (round_up(half, kAlign) + 2 * kAlign);
}

void WeightStore::gather(size_t sublayer, size_t weight, std::span<const int32_t> ids, float* out,
                         std::span<std::byte> staging) {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  const io::TensorEntry& tensor = model_.tensor(sublayer, weight);
  const Weight& placed = weights_[sublayer][weight];
  const ForeignMatrix* const packed = model_.foreign(sublayer, weight);
  const int64_t row_bytes = shape.cols * dtype_bytes(tensor.dtype);
  const int64_t window_bytes = round_up(row_bytes, kAlign) + kAlign;
  const int64_t batch = static_cast<int64_t>(staging.size()) / window_bytes;
  std::vector<io::Extent> extents;
  std::vector<std::pair<const std::byte*, int64_t>> rows;  // source, index into ids
  std::vector<std::pair<const std::byte*, int64_t>> packed_rows;
  const auto flush = [&] {
    if (!extents.empty()) gather_engine_.read_now(extents);
    for (const auto& [source, index] : rows)
      kernels::convert(tensor.dtype, source, DType::kF32, out + index * shape.cols, shape.cols);
    for (const auto& [source, index] : packed_rows)
      gather_packed(sublayer, weight, source, out + index * shape.cols);
    extents.clear();
    rows.clear();
    packed_rows.clear();
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids[i];
    SLUICE_ASSERT(id >= 0 && id < shape.rows, "ids are checked at admission");
    const auto index = static_cast<int64_t>(i);
    if (id < placed.split.resident) {
      SLUICE_ASSERT(!device_ || device_->is_in_host_memory(), "the device gathers its own rows");
      rows.emplace_back(resident_.data() + placed.resident_offset + id * row_bytes, index);
      continue;
    }
    if (id < placed.split.resident + placed.split.host) {
      const int64_t host_row = id - placed.split.resident;
      rows.emplace_back(host_.rows.data() + placed.host_offset + host_row * row_bytes, index);
      continue;
    }
    if (static_cast<int64_t>(extents.size()) == batch) flush();
    const io::TensorEntry& lies = packed ? *packed->parts.front() : tensor;
    const int64_t bytes = packed ? packed->row_bytes() : row_bytes;
    const int64_t offset = lies.offset + id * bytes;
    const io::Window window = io::aligned_window(offset, bytes);
    SLUICE_ASSERT(window.bytes <= window_bytes, "a packed row is no longer");
    std::byte* memory = staging.data() + static_cast<int64_t>(extents.size()) * window_bytes;
    extents.push_back({gather_files_[static_cast<size_t>(lies.file_index)], window.offset,
                       window.bytes, memory, offset + bytes - window.offset});
    gathered_bytes_ += window.bytes;
    (packed ? packed_rows : rows).emplace_back(memory + (offset - window.offset), index);
  }
  flush();
}

}  // namespace sluice
