#include "src/engine/stores/adapter_bank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/files/input_file.h"
#include "kernels/elementwise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
constexpr int64_t kReadBytes = 4 * kMiB;

// Calls use(first row, rows in f32) for rows [first, first + count) of a plain matrix or table, as
// the checkpoint has it.
template <typename Use>
void for_rows(const BoundModel& model, size_t sublayer, size_t weight, int64_t count,
              const Use& use) {
  const io::TensorEntry& tensor = model.tensor(sublayer, weight);
  const int64_t cols = tensor.shape.back();
  const int64_t row_bytes = cols * dtype_bytes(tensor.dtype);
  const io::InputFile file(model.checkpoint().files()[static_cast<size_t>(tensor.file_index)].path);
  const int64_t rows = std::max<int64_t>(kReadBytes / row_bytes, 1);
  std::vector<std::byte> bytes;
  std::vector<float> values;
  for (int64_t row = 0; row < count; row += rows) {
    const int64_t n = std::min(rows, count - row);
    bytes.resize(static_cast<size_t>(n * row_bytes));
    values.resize(static_cast<size_t>(n * cols));
    file.read(tensor.offset + row * row_bytes, bytes, "a weight");
    kernels::convert(tensor.dtype, bytes.data(), DType::kF32, values.data(), n * cols);
    use(row, std::span<const float>(values));
  }
}

// A copy of a table that came with an adapter has to be the model's.
void check_copies(const BoundModel& model, const LoraAdapter& adapter) {
  const ModelShape& shape = model.shape();
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = shape.sublayers[i].weights[w];
      const bool is_plain = weight.kind != WeightKind::kVector && weight.experts == 0 &&
                            !weight.quantised.is_quantised() && !model.foreign(i, w);
      if (!is_plain) continue;
      const auto copy =
          std::find_if(adapter.saved.begin(), adapter.saved.end(), [&](const auto& saved) {
            return saved.second.is_copy && std::find(weight.names.begin(), weight.names.end(),
                                                     saved.first) != weight.names.end();
          });
      if (copy == adapter.saved.end() ||
          std::ssize(copy->second.values) != weight.rows * weight.cols)
        continue;
      for_rows(model, i, w, weight.rows, [&](int64_t row, std::span<const float> values) {
        const float* theirs = copy->second.values.data() + row * weight.cols;
        for (size_t at = 0; at < values.size(); ++at)
          // The copy may be in fewer bits than the model.
          if (std::abs(values[at] - theirs[at]) > 0.01f * std::abs(values[at]) + 1e-6f)
            throw Error(ErrorKind::kUser,
                        fmt::format("adapter {}: its copy of {} is not the model's", adapter.name,
                                    copy->first),
                        "give the adapter's own base model, or merge it: "
                        "sluice convert MODEL STORE --merge-lora ADAPTER");
      });
    }
}

// What B and y are multiplied by (DoRA): magnitude / length of each row.
std::vector<float> factors_of(const BoundModel& model, const AdapterPlace& place, int64_t rows) {
  std::vector<float> factors(static_cast<size_t>(rows), 1.0f);
  for_rows(
      model, place.sublayer, place.weight, rows, [&](int64_t row, std::span<const float> values) {
        const std::vector<double> lengths = place.matrix->lengths(place.first_row + row, values);
        for (size_t i = 0; i < lengths.size(); ++i)
          if (lengths[i] > 0)  // a row of zeros has no direction
            factors[static_cast<size_t>(row) + i] = static_cast<float>(
                place.matrix->magnitude[static_cast<size_t>(place.first_row + row) + i] /
                lengths[i]);
      });
  return factors;
}
}  // namespace

AdapterRoom adapter_room(const BoundModel& model, std::span<const LoraAdapter> adapters,
                         int64_t more_bytes, int64_t most_rank) {
  AdapterRoom room{round_up(more_bytes, kAdapterLine), most_rank};
  for (const LoraAdapter& adapter : adapters) {
    const AdapterNeed need = adapter_need(model, adapter);
    room.bytes += need.bytes;
    room.rank = std::max(room.rank, need.rank);
  }
  return room;
}

// Ranges of the room, the first that is large enough.
class AdapterBank::Memory : public std::enable_shared_from_this<AdapterBank::Memory> {
 public:
  Memory(Arena& arena, int64_t bytes) : all_(arena.allocate(bytes, "adapters")) {
    if (bytes > 0) free_[0] = bytes;
  }

  /// Null: no run of so many bytes is free.
  std::shared_ptr<std::byte> take(int64_t bytes) {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& range) { return range.second >= bytes; });
    if (found == free_.end()) return nullptr;
    const auto [begin, size] = *found;
    free_.erase(found);
    if (size > bytes) free_[begin + bytes] = size - bytes;
    return {all_.data() + begin, [self = shared_from_this(), begin = begin, bytes](std::byte*) {
              self->give_back(begin, bytes);
            }};
  }
  int64_t free_bytes() const {
    const MutexLock lock(mutex_);
    int64_t sum = 0;
    for (const auto& [begin, size] : free_) sum += size;
    return sum;
  }

 private:
  void give_back(int64_t begin, int64_t size) {
    const MutexLock lock(mutex_);
    auto after = free_.lower_bound(begin);
    if (after != free_.end() && begin + size == after->first) {
      size += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == begin) {
        before->second += size;
        return;
      }
    }
    free_[begin] = size;
  }

  Buffer all_;
  mutable Mutex mutex_;
  std::map<int64_t, int64_t> free_ SLUICE_GUARDED_BY(mutex_);  // by where they begin
};

AdapterBank::AdapterBank(const BoundModel& model, const AdapterRoom& room, Arena& memory,
                         Device* device)
    : model_(model),
      room_(room),
      device_(device && !device->is_in_host_memory() ? device : nullptr),
      memory_(std::make_shared<Memory>(memory, room.bytes)) {}
AdapterBank::~AdapterBank() = default;

namespace {
// What is written here is read there, which is the same memory or a device's.
class Layout {
 public:
  Layout(std::byte* here, std::byte* there) : here_(here), there_(there) {}

  struct Part {
    std::byte* here;
    std::byte* there;
  };
  Part take(int64_t bytes) {
    const Part part{here_ + used_, there_ + used_};
    used_ += round_up(bytes, kAdapterLine);
    return part;
  }

 private:
  std::byte* here_;
  std::byte* there_;
  int64_t used_ = 0;
};

kernels::LowRank lay_out(const BoundModel& model, const AdapterPlace& place, Layout layout) {
  const WeightShape& weight = model.shape().sublayers[place.sublayer].weights[place.weight];
  const LoraMatrix& matrix = *place.matrix;
  kernels::LowRank out{.dtype = place.dtype(), .rank = matrix.rank, .scale = matrix.scale};
  const int64_t element = dtype_bytes(out.dtype);
  const float* b = matrix.b.data() + place.first_row * matrix.rank;
  const int64_t rows = weight.rows, cols = matrix.is_table ? weight.cols : matrix.cols;
  const Layout::Part a = layout.take((matrix.is_table ? rows : cols) * matrix.rank * element);
  const Layout::Part tiles = layout.take((matrix.is_table ? cols : rows) * matrix.rank * element);
  out.a = a.there;
  out.b = tiles.there;
  if (matrix.is_table) {
    kernels::convert(DType::kF32, b, out.dtype, a.here, rows * matrix.rank);
    std::vector<float> turned(matrix.a.size());
    for (int64_t r = 0; r < matrix.rank; ++r)
      for (int64_t c = 0; c < matrix.cols; ++c)
        turned[static_cast<size_t>(c * matrix.rank + r)] =
            matrix.a[static_cast<size_t>(r * matrix.cols + c)];
    kernels::place_low_rank_b(turned.data(), matrix.cols, matrix.rank, out.dtype, tiles.here);
    return out;
  }
  kernels::convert(DType::kF32, matrix.a.data(), out.dtype, a.here, std::ssize(matrix.a));
  if (matrix.magnitude.empty()) {
    kernels::place_low_rank_b(b, rows, matrix.rank, out.dtype, tiles.here);
    return out;
  }
  const std::vector<float> factors = factors_of(model, place, rows);
  std::vector<float> scaled(b, b + rows * matrix.rank);
  for (size_t i = 0; i < scaled.size(); ++i)
    scaled[i] *= factors[i / static_cast<size_t>(matrix.rank)];
  kernels::place_low_rank_b(scaled.data(), rows, matrix.rank, out.dtype, tiles.here);
  const Layout::Part kept = layout.take(rows * 4);
  std::memcpy(kept.here, factors.data(), factors.size() * 4);
  out.factors = reinterpret_cast<const float*>(kept.there);
  return out;
}
}  // namespace

// Lays all changes out in the adapter's memory, one behind the other, and behind them the table.
void AdapterBank::place(std::span<const AdapterPlace> places, PlacedAdapter& adapter,
                        std::byte* to) const {
  std::vector<std::byte> staged;
  // Calls write(here), for what is to be at `to`, whose end it moves on to.
  const auto put = [&](int64_t bytes, const auto& write) {
    if (device_) staged.resize(static_cast<size_t>(bytes));
    write(device_ ? staged.data() : to);
    if (device_) device_->load(to, staged.data(), bytes);
    to += bytes;
  };
  const std::vector<SublayerShape>& sublayers = model_.shape().sublayers;
  adapter.changes.resize(sublayers.size());
  for (const AdapterPlace& place : places) {
    auto& of = adapter.changes[place.sublayer];
    of.resize(sublayers[place.sublayer].weights.size());
    put(place_bytes(model_.shape(), place),
        [&](std::byte* here) { of[place.weight] = lay_out(model_, place, Layout(here, to)); });
  }
  std::vector<kernels::LowRank> table;
  for (size_t i = 0; i < sublayers.size(); ++i) {
    adapter.before.push_back(std::ssize(table));
    for (size_t weight = 0; weight < sublayers[i].weights.size(); ++weight) {
      const kernels::LowRank* change = adapter.find(i, weight);
      table.push_back(change ? *change : kernels::LowRank());
    }
  }
  adapter.table = reinterpret_cast<const kernels::LowRank*>(to);
  put(adapter_table_bytes(model_.shape()), [&](std::byte* here) {
    std::memcpy(here, table.data(), table.size() * sizeof(kernels::LowRank));
  });
}

AdapterPtr AdapterBank::load(const std::string& name, const LoraAdapter& adapter) {
  const std::vector<AdapterPlace> places = adapter_places(model_, adapter);
  check_copies(model_, adapter);
  const AdapterNeed need = adapter_need(model_, adapter);
  if (need.rank > room_.rank)
    throw Error(ErrorKind::kUser,
                fmt::format("adapter {} has rank {}, there is room for ranks up to {}", name,
                            need.rank, room_.rank),
                "raise the largest rank that adapters may have when the program is started");
  const auto refuse_name = [&] {
    throw Error(ErrorKind::kUser, fmt::format("there is an adapter {} already", name),
                "unload it first, or choose another name");
  };
  if (find(name)) refuse_name();
  std::shared_ptr<std::byte> memory = memory_->take(need.bytes);
  if (!memory)
    throw Error(ErrorKind::kResource,
                fmt::format("adapter {} takes {}, of {} for adapters {} are free", name,
                            format_bytes(need.bytes), format_bytes(room_.bytes),
                            format_bytes(free_bytes())),
                "unload another one (its memory is free when its requests have ended), or give "
                "adapters more room when the program is started");
  auto placed = std::make_shared<PlacedAdapter>();
  placed->name = name;
  placed->bytes = need.bytes;
  placed->rank = need.rank;
  place(places, *placed, memory.get());
  placed->memory = std::move(memory);
  const MutexLock lock(mutex_);
  placed->id = next_id_++;
  if (!adapters_.emplace(name, placed).second) refuse_name();
  return placed;
}

bool AdapterBank::unload(std::string_view name) {
  AdapterPtr last;  // its memory is given back without the lock
  const MutexLock lock(mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) return false;
  last = std::move(found->second);
  adapters_.erase(found);
  return true;
}

AdapterPtr AdapterBank::find(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto found = adapters_.find(name);
  return found == adapters_.end() ? nullptr : found->second;
}

std::vector<AdapterPtr> AdapterBank::list() const {
  const MutexLock lock(mutex_);
  std::vector<AdapterPtr> all;
  for (const auto& [name, adapter] : adapters_) all.push_back(adapter);
  return all;
}

int64_t AdapterBank::free_bytes() const { return memory_->free_bytes(); }

}  // namespace sluice
