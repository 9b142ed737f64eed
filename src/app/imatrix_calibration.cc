#include "src/app/imatrix_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/base/error.h"
#include "src/base/printable.h"
#include "src/model/foreign/gguf_names.h"

namespace sluice::app {

namespace {
constexpr std::string_view kBlock = "blk.";
constexpr int64_t kRows = 4096;  // of an entry: means of many

class Reader {
 public:
  Reader(const io::Imatrix& imatrix, const BoundModel& model, const std::filesystem::path& path)
      : imatrix_(imatrix), model_(model), path_(path) {}

  Calibration read() {
    const ModelShape& shape = model_.shape();
    for (const auto& [name, entry] : imatrix_) check_layer(name, shape.num_layers);
    for (size_t i = 0; i < shape.sublayers.size(); ++i)
      for (size_t weight = 0; weight < shape.sublayers[i].weights.size(); ++weight) {
        const WeightShape& matrix = shape.sublayers[i].weights[weight];
        if (!matrix.may_be_quantised()) continue;
        const auto found = find(matrix);
        if (found != imatrix_.end())
          add(i, weight, found->first, found->second);
        else if (shape.sublayers[i].kind != SublayerKind::kHead)
          refuse(fmt::format("has nothing of {}, which the model has; it begins with {}",
                             matrix.gguf.name, printable(imatrix_.begin()->first)));
      }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Error(ErrorKind::kUser, fmt::format("importance matrix {}: {}", path_.string(), problem),
                "give one that llama-imatrix has made of this model");
  }

  // Layers that predict tokens ahead may stand behind the last.
  void check_layer(const std::string& name, int64_t layers) const {
    if (!name.starts_with(kBlock)) return;
    int64_t layer = 0;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + kBlock.size(), end, layer).ec != std::errc{}) return;
    if (layer > layers || layer < 0)
      refuse(fmt::format("has {}, but the model has {} layers", printable(name), layers));
  }

  // By its own name, that of all experts, or of a matrix that has the same inputs in some files.
  io::Imatrix::const_iterator find(const WeightShape& matrix) const {
    const std::string& own = matrix.gguf.name;
    if (own.empty())
      throw Error(ErrorKind::kUser,
                  fmt::format("an importance matrix for {}: its family has no names in GGUF files",
                              model_.path().string()),
                  "calibrate on a text");
    const std::string whole = whole_gguf_name(own);
    const std::string& name = whole.empty() ? own : whole;
    auto found = imatrix_.find(apart_gguf_name(own));
    if (found == imatrix_.end()) found = imatrix_.find(name);
    constexpr std::pair<std::string_view, std::string_view> kAlso[] = {
        {"attn_q.", "attn_qkv."},
        {"attn_k.", "attn_qkv."},
        {"attn_v.", "attn_qkv."},
        {"ffn_gate.", "ffn_up."},
        {"ffn_gate_exps", "ffn_gate_up_exps"},
        {"ffn_up_exps", "ffn_gate_up_exps"}};
    for (const auto& [from, to] : kAlso) {
      if (found != imatrix_.end()) break;
      if (const size_t at = name.find(from); at != std::string::npos)
        found = imatrix_.find(std::string(name).replace(at, from.size(), to));
    }
    return found;
  }

  // Of experts each one's, or what all have where the file says no more.
  void add(size_t sublayer, size_t weight, const std::string& name, const io::ImatrixEntry& entry) {
    const WeightShape& matrix = model_.shape().sublayers[sublayer].weights[weight];
    const auto cols = static_cast<size_t>(matrix.cols);
    const auto experts = static_cast<size_t>(matrix.tensors());
    if (entry.squares.size() != cols * experts && entry.squares.size() != cols)
      refuse(fmt::format("{} has {} values, the model's matrix {} columns{}", printable(name),
                         entry.squares.size(), cols,
                         experts > 1 ? fmt::format(" and {} experts", experts) : ""));
    for (size_t expert = 0; expert < experts; ++expert) {
      const float* squares =
          entry.squares.data() + (entry.squares.size() == cols ? 0 : expert * cols);
      if (std::all_of(squares, squares + cols, [](float square) { return square == 0; })) continue;
      InputStatistics& out = out_[{sublayer, weight, expert}];
      out.rows = kRows;
      for (size_t col = 0; col < cols; ++col) {
        out.square.push_back(double{squares[col]} * kRows);
        out.magnitude.push_back(std::sqrt(double{squares[col]}) * kRows);
      }
    }
  }

  const io::Imatrix& imatrix_;
  const BoundModel& model_;
  const std::filesystem::path& path_;
  Calibration out_;
};
}  // namespace

Calibration calibration_of(const io::Imatrix& imatrix, const BoundModel& model,
                           const std::filesystem::path& path) {
  return Reader(imatrix, model, path).read();
}

}  // namespace sluice::app
