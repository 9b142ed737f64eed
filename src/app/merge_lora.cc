#include "src/app/merge_lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/elementwise.h"
#include "src/base/error.h"
#include "src/engine/stores/pack_rows.h"
#include "src/engine/stores/panel_quantiser.h"

namespace sluice::app {

namespace {
using Bytes = std::vector<std::byte>;

// What an adapter does to rows of one tensor of the store.
struct Change {
  const LoraMatrix* added = nullptr;
  const SavedTensor* saved = nullptr;  // comes first
  int64_t first_row = 0;               // of the tensor that the adapter names
};

// The tensor by that name; where the model lies inside another (a vision wrapper), or the adapter
// was made of one that did, the only one with that end.
const io::TensorEntry* find_tensor(const io::Checkpoint& checkpoint, const std::string& name) {
  if (const io::TensorEntry* found = checkpoint.find(name)) return found;
  const io::TensorEntry* only = nullptr;
  for (const io::TensorEntry& tensor : checkpoint.tensors()) {
    const std::string_view whole = tensor.name.size() > name.size() ? tensor.name : name;
    const std::string_view end = tensor.name.size() > name.size() ? name : tensor.name;
    if (!whole.ends_with(end) || whole.size() == end.size() ||
        whole[whole.size() - end.size() - 1] != '.')
      continue;
    if (only) return nullptr;
    only = &tensor;
  }
  return only;
}

[[noreturn]] void refuse(const LoraAdapter& adapter, const std::string& tensor,
                         const std::string& why, const std::string& mend) {
  throw Error(ErrorKind::kUser, fmt::format("adapter {} changes {}: {}", adapter.name, tensor, why),
              mend);
}

// A tensor of the model that the adapter names, checked.
const io::TensorEntry& target_of(const BoundModel& model, const LoraAdapter& adapter,
                                 const std::string& name, std::span<const int64_t> shape) {
  const io::TensorEntry* tensor = find_tensor(model.checkpoint(), name);
  if (!tensor)
    refuse(adapter, name, "the model has no such tensor",
           model.foreign_method().empty()
               ? "give the adapter's own base model"
               : fmt::format("{} has packed it: convert the model with `weights` bf16 first, then "
                             "merge into that store",
                             model.foreign_method()));
  if (tensor->quantised.is_quantised() || tensor->blocks != BlockType::kNone)
    refuse(adapter, name, "it is quantised",
           "merge into the plain checkpoint and quantise what comes out");
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end()))
    refuse(adapter, name,
           fmt::format("it is {}, the adapter is for {}", io::format_shape(tensor->shape),
                       io::format_shape(shape)),
           "give the adapter's own base model");
  return *tensor;
}

// Rows of the source's or the adapter's own, with what is added.
void changed_rows(const Change& change, DType dtype, const Bytes& source, int64_t first,
                  int64_t count, int64_t cols, float* rows) {
  const auto begin = (change.first_row + first) * cols;
  if (change.saved)
    std::copy_n(change.saved->values.begin() + begin, count * cols, rows);
  else
    kernels::convert(dtype, source.data() + first * cols * dtype_bytes(dtype), DType::kF32, rows,
                     count * cols);
  if (change.added)
    change.added->apply(change.first_row + first, {rows, static_cast<size_t>(count * cols)});
}

io::StoreTensor changed_tensor(const io::TensorEntry& from, const WeightShape& weight,
                               const WeightFormat& to, const Change& change,
                               kernels::RangeSearch search) {
  const io::TensorEntry made = made_tensor(from.name, weight, to);
  const int64_t rows = weight.kind == WeightKind::kVector ? 1 : weight.rows;
  return {made,
          {from.name},
          [=, cols = weight.cols, dtype = from.dtype,
           quantise = panel_quantiser(search)](const std::vector<Bytes>& sources) {
            Bytes out(static_cast<size_t>(made.bytes));
            const PackedFrom values{rows, cols, [&](int64_t first, int64_t count, float* to_rows) {
                                      changed_rows(change, dtype, sources.front(), first, count,
                                                   cols, to_rows);
                                    }};
            if (!pack_rows(values, to, quantise, 0, out))
              throw Error(ErrorKind::kUser,
                          fmt::format("tensor {}: with the adapter a value is too large for {}",
                                      made.name, format_name(to)),
                          "choose a type with a wider range: `weights` bf16 or f32");
            return out;
          }};
}
}  // namespace

void merge_lora(const BoundModel& model, const LoraAdapter& adapter, kernels::RangeSearch search,
                std::vector<io::StoreGroup>& groups) {
  // What is changed, and whether something of the store was made of it.
  struct Target {
    const io::TensorEntry* tensor;
    std::string name;
    Change change;
    bool is_used = false;
  };
  std::map<const io::TensorEntry*, Target> targets;
  for (const auto& [name, saved] : adapter.saved) {
    const io::TensorEntry& tensor = target_of(model, adapter, name, saved.shape);
    targets[&tensor] = {&tensor, name, {nullptr, &saved, 0}};
  }
  for (const auto& [name, matrix] : adapter.matrices) {
    const int64_t shape[] = {matrix.rows, matrix.cols};
    const io::TensorEntry& tensor = target_of(model, adapter, name, shape);
    Target& target = targets[&tensor];
    target.tensor = &tensor;
    target.name = name;
    target.change.added = &matrix;
  }
  // Tensors of the model are whole, or rows of those that the checkpoint has.
  const auto target_with = [&](const io::TensorEntry& part) -> Target* {
    for (auto& [tensor, target] : targets)
      if (tensor->file_index == part.file_index && part.offset >= tensor->offset &&
          part.offset + part.bytes <= tensor->offset + tensor->bytes)
        return &target;
    return nullptr;
  };
  std::map<std::string, io::StoreTensor*> stored;
  for (io::StoreGroup& group : groups)
    for (io::StoreTensor& tensor : group.tensors) stored[tensor.store_name] = &tensor;

  const ModelShape& shape = model.shape();
  const auto merge_into = [&](const WeightShape& weight, const io::TensorEntry& from) {
    Target* target = target_with(from);
    if (!target) return;
    io::StoreTensor& tensor = *stored.at(from.name);
    if (tensor.make || weight.shares_table)
      refuse(adapter, target->name, "two layers of the model share it",
             "merge it with PEFT (merge_and_unload) and use what that writes");
    Change change = target->change;
    change.first_row =
        (from.offset - target->tensor->offset) / (weight.cols * dtype_bytes(from.dtype));
    tensor = changed_tensor(from, weight, tensor.to.value_or(WeightFormat::plain(from.dtype)),
                            change, search);
    target->is_used = true;
  };
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = shape.sublayers[i].weights[w];
      for (int64_t expert = 0; expert < weight.tensors(); ++expert)
        if (!model.foreign(i, w, static_cast<size_t>(expert)))
          merge_into(weight.of_expert(expert), model.tensor(i, w, static_cast<size_t>(expert)));
    }
  for (const auto& [tensor, target] : targets)
    if (!target.is_used)
      refuse(adapter, target.name, "the model as it runs does not use that tensor",
             model.foreign_method().empty()
                 ? "merge it with PEFT (merge_and_unload) and use what that writes"
                 : "convert the model with `weights` bf16 first, then merge into that store");
}

}  // namespace sluice::app
