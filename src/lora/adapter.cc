#include "src/lora/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/element_conversion.h"
#include "io/checkpoint/json_file.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/guide/automaton.h"
#include "src/guide/regex.h"

namespace sluice {

namespace {
using nlohmann::json;
using std::filesystem::path;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr int64_t kMostRank = 1 << 16;
constexpr size_t kLongestPattern = 256;
constexpr size_t kMostPatterns = 256;
constexpr size_t kLongestName = 1024;

[[noreturn]] void refuse(const path& config, const std::string& what, const std::string& mend) {
  throw Error(ErrorKind::kUser, fmt::format("{}: {}", config.string(), what), mend);
}

// Whether a setting says nothing: left out, null, false, empty, "none".
bool is_unset(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return true;
  if (found->is_boolean()) return !found->get<bool>();
  if (found->is_string()) return found->get<std::string>().empty() || *found == "none";
  return (found->is_array() || found->is_object()) && found->empty();
}

// Settings that change what the matrices mean.
void check_settings(const json& config, const path& file) {
  if (!config.is_object())
    refuse(file, "is no JSON object", "give the folder that PEFT has written");
  const auto type = config.value("peft_type", json("LORA"));
  if (type != "LORA")
    refuse(file, fmt::format("peft_type {}: not known here", type.dump()),
           "merge it with PEFT (merge_and_unload) and use what that writes");
  for (const char* key :
       {"bias", "lora_bias", "layer_replication", "target_parameters", "trainable_token_indices",
        "use_qalora", "alora_invocation_tokens", "arrow_config", "use_bdlora", "kasa_config",
        "monteclora_config", "velora_config"})
    if (!is_unset(config, key))
      refuse(file, fmt::format("{} {}: not known here", key, config[key].dump()),
             "merge it with PEFT (merge_and_unload) and use what that writes");
  // These begin from weights that are not the base model's.
  const auto begun = config.find("init_lora_weights");
  if (begun == config.end() || !begun->is_string()) return;
  const auto& how = begun->get_ref<const std::string&>();
  for (const char* changed : {"pissa", "olora", "corda"})
    if (how.starts_with(changed))
      refuse(file,
             fmt::format("init_lora_weights \"{}\" goes with weights that are not the base "
                         "model's",
                         how),
             "save it with path_initial_model_for_weight_conversion, which makes a plain LoRA");
}

double number(const json& config, const char* key, double otherwise, const path& file) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  if (!found->is_number() || !std::isfinite(found->get<double>()))
    refuse(file, fmt::format("{} {}: has to be a number", key, found->dump()), "mend the file");
  return found->get<double>();
}

// lora_alpha and alpha_pattern. Patterns come from files: they are read by an automaton, in time
// that the name's length gives.
class Alphas {
 public:
  Alphas(const json& config, const path& file) : all_(number(config, "lora_alpha", 8, file)) {
    const auto patterns = config.find("alpha_pattern");
    if (patterns == config.end() || patterns->is_null()) return;
    if (!patterns->is_object() || patterns->size() > kMostPatterns)
      refuse(file, "alpha_pattern has to be an object of at most 256 entries", "mend the file");
    for (const auto& [pattern, alpha] : patterns->items()) {
      if (pattern.size() > kLongestPattern)
        refuse(file, "alpha_pattern: a pattern is longer than 256 characters", "shorten it");
      try {
        const auto expression = guide::parse_regex("(.*\\.)?(" + pattern + ")");
        patterns_.push_back({guide::Automaton(guide::Grammar().build(expression)),
                             number(*patterns, pattern.c_str(), all_, file)});
      } catch (const Error& error) {
        refuse(file, fmt::format("alpha_pattern {}: {}", io::in_quotes(pattern), error.text()),
               "write patterns as regular expressions");
      }
    }
  }
  /// Of a module: that of the pattern which its name ends with, as PEFT matches them. PEFT takes
  /// the first of several, and the order of keys is not kept here.
  double of(const std::string& module, const path& file) {
    std::optional<double> found;
    for (Pattern& pattern : patterns_) {
      guide::Automaton::State state = pattern.names.start();
      for (const char c : module) {
        state = pattern.names.after(state, static_cast<uint8_t>(c));
        if (state == guide::Automaton::kDead) break;
      }
      if (state == guide::Automaton::kDead || !pattern.names.is_accepting(state)) continue;
      if (found && *found != pattern.alpha)
        refuse(file,
               fmt::format("alpha_pattern: two patterns with different values are of {}",
                           io::in_quotes(module)),
               "write patterns so that one is of each module");
      found = pattern.alpha;
    }
    return found.value_or(all_);
  }

 private:
  struct Pattern {
    guide::Automaton names;
    double alpha;
  };
  double all_;
  std::vector<Pattern> patterns_;
};

// Of one module, as they come.
struct Parts {
  const io::TensorEntry* a = nullptr;
  const io::TensorEntry* b = nullptr;
  const io::TensorEntry* magnitude = nullptr;
  bool is_embedding = false;
};

class AdapterReader {
 public:
  AdapterReader(const path& folder, LoraAdapter& out)
      : config_file_(folder / "adapter_config.json"),
        config_(io::read_json_file(config_file_)),
        checkpoint_(io::Checkpoint::open(weights_file(folder))),
        out_(out) {
    check_settings(config_, config_file_);
    alphas_.emplace(config_, config_file_);
  }

  void read() {
    for (const io::TensorEntry& tensor : checkpoint_.tensors()) sort(tensor);
    for (const auto& [module, parts] : modules_) add_matrix(module, parts);
    if (out_.matrices.empty() && out_.saved.empty())
      fail("it holds nothing that changes a model", "give the folder that PEFT has written");
  }

 private:
  static path weights_file(const path& folder) {
    for (const char* name : {"adapter_model.safetensors", "adapter_model.bin"})
      if (is_file(folder / name)) return folder / name;
    throw Error(
        ErrorKind::kFile,
        fmt::format("{}: no adapter_model.safetensors and no adapter_model.bin", folder.string()),
        "give the folder that PEFT has written");
  }
  [[noreturn]] void fail(const std::string& what, const std::string& mend) const {
    throw Error(ErrorKind::kFile,
                fmt::format("{}: {}", checkpoint_.files().front().path.string(), what), mend);
  }

  void sort(const io::TensorEntry& tensor) {
    std::string_view name = tensor.name;
    if (name.size() > kLongestName) fail("a tensor's name is too long", "download it again");
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    struct Ending {
      std::string_view text;
      const io::TensorEntry* Parts::*part;
      bool is_embedding;
    };
    static constexpr Ending kEndings[] = {
        {".lora_A.weight", &Parts::a, false},
        {".lora_B.weight", &Parts::b, false},
        {".lora_embedding_A", &Parts::a, true},
        {".lora_embedding_B", &Parts::b, true},
        {".lora_magnitude_vector", &Parts::magnitude, false},
        {".lora_magnitude_vector.weight", &Parts::magnitude, false}};
    for (const Ending& ending : kEndings) {
      if (!name.ends_with(ending.text)) continue;
      Parts& parts = modules_[std::string(name.substr(0, name.size() - ending.text.size()))];
      parts.*ending.part = &tensor;
      parts.is_embedding = parts.is_embedding || ending.is_embedding;
      return;
    }
    if (name.find("lora_") != std::string_view::npos || !name.ends_with(".weight"))
      fail(fmt::format("tensor {} is none that is known here", io::in_quotes(tensor.name)),
           "merge it with PEFT (merge_and_unload) and use what that writes");
    std::string saved(name);
    const bool is_copy = name.ends_with(".base_layer.weight");
    for (const std::string_view inner : {".base_layer.weight", ".modules_to_save.weight"})
      if (saved.ends_with(inner))
        saved.replace(saved.size() - inner.size(), inner.size(), ".weight");
    out_.saved[saved] = {tensor.shape, values(tensor), is_copy};
  }

  std::vector<float> values(const io::TensorEntry& tensor) const {
    if (tensor.quantised.is_quantised() || tensor.blocks != BlockType::kNone ||
        (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 &&
         tensor.dtype != DType::kBF16))
      fail(fmt::format("tensor {} is {}: f32, f16 or bf16 was expected", io::in_quotes(tensor.name),
                       io::element_name(tensor)),
           "save the adapter in one of these");
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
    std::ifstream file(checkpoint_.files()[static_cast<size_t>(tensor.file_index)].path,
                       std::ios::binary);
    file.seekg(tensor.offset);
    file.read(reinterpret_cast<char*>(bytes.data()), tensor.bytes);
    if (!file)
      fail(fmt::format("tensor {} can't be read", io::in_quotes(tensor.name)), "try again");
    std::vector<float> out(bytes.size() / static_cast<size_t>(dtype_bytes(tensor.dtype)));
    io::convert_elements(tensor.dtype, bytes, DType::kF32, std::as_writable_bytes(std::span(out)));
    for (const float value : out)
      if (!std::isfinite(value))
        fail(fmt::format("tensor {} holds an infinite value, or no number",
                         io::in_quotes(tensor.name)),
             "the adapter is damaged: download it again");
    return out;
  }

  static std::vector<float> transposed(const std::vector<float>& from, int64_t rows, int64_t cols) {
    std::vector<float> out(from.size());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        out[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * cols + c)];
    return out;
  }

  void add_matrix(const std::string& module, const Parts& parts) {
    if (!parts.a || !parts.b)
      fail(fmt::format("module {} has {}", io::in_quotes(module),
                       parts.a   ? "lora_A without lora_B"
                       : parts.b ? "lora_B without lora_A"
                                 : "a magnitude without matrices"),
           "the adapter is damaged: download it again");
    const std::vector<int64_t>&a = parts.a->shape, &b = parts.b->shape;
    const bool fit = a.size() == 2 && b.size() == 2 && a[0] == b[1] && a[0] >= 1 &&
                     a[0] <= kMostRank && a[1] >= 1 && b[0] >= 1;
    if (!fit)
      fail(fmt::format("module {}: A {} and B {} do not fit each other", io::in_quotes(module),
                       io::format_shape(a), io::format_shape(b)),
           "give the adapter of a linear layer or an embedding");
    LoraMatrix& out = out_.matrices[module + ".weight"];
    out.rank = a[0];
    const double alpha = alphas_->of(module, config_file_);
    const auto rank = static_cast<double>(out.rank);
    out.scale = static_cast<float>(is_unset(config_, "use_rslora") ? alpha / rank
                                                                   : alpha / std::sqrt(rank));
    out.dtype = parts.a->dtype == parts.b->dtype ? parts.a->dtype : DType::kF32;
    if (parts.is_embedding) {  // an embedding is looked up by the row: its change is (B A)^T
      if (parts.magnitude) fail("DoRA of an embedding is not known here", "merge it with PEFT");
      out.is_table = true;
      out.rows = a[1];
      out.cols = b[0];
      out.a = transposed(values(*parts.b), out.cols, out.rank);
      out.b = transposed(values(*parts.a), out.rank, out.rows);
      return;
    }
    out.rows = b[0];
    out.cols = a[1];
    out.a = values(*parts.a);
    out.b = values(*parts.b);
    if (!parts.magnitude) {
      if (!is_unset(config_, "use_dora"))
        fail(fmt::format("module {}: use_dora without a magnitude", io::in_quotes(module)),
             "the adapter is damaged: download it again");
      return;
    }
    out.magnitude = values(*parts.magnitude);
    if (std::ssize(out.magnitude) != out.rows)
      fail(fmt::format("module {}: a magnitude of {} values for {} rows", io::in_quotes(module),
                       out.magnitude.size(), out.rows),
           "the adapter is damaged: download it again");
  }

  path config_file_;
  json config_;
  io::Checkpoint checkpoint_;
  std::optional<Alphas> alphas_;
  LoraAdapter& out_;
  std::map<std::string, Parts> modules_;
};
}  // namespace

namespace {
void add_to(const LoraMatrix& matrix, int64_t row_of_w, float* row) {
  const float* factors = matrix.b.data() + row_of_w * matrix.rank;
  for (int64_t r = 0; r < matrix.rank; ++r) {
    const float factor = matrix.scale * factors[r];
    const float* from = matrix.a.data() + r * matrix.cols;
    for (int64_t c = 0; c < matrix.cols; ++c) row[c] += factor * from[c];
  }
}

double length_of(std::span<const float> row) {
  double squares = 0;
  for (const float value : row) squares += double{value} * double{value};
  return std::sqrt(squares);
}
}  // namespace

std::vector<double> LoraMatrix::lengths(int64_t first_row, std::span<const float> w) const {
  std::vector<double> out;
  std::vector<float> row(static_cast<size_t>(cols));
  for (size_t begin = 0; begin < w.size(); begin += row.size()) {
    std::copy_n(w.begin() + static_cast<std::ptrdiff_t>(begin), row.size(), row.begin());
    add_to(*this, first_row++, row.data());
    out.push_back(length_of(row));
  }
  return out;
}

void LoraMatrix::apply(int64_t first_row, std::span<float> w) const {
  const int64_t count = std::ssize(w) / cols;
  SLUICE_ASSERT(count * cols == std::ssize(w) && first_row >= 0 && first_row + count <= rows,
                "whole rows of the matrix");
  for (int64_t i = 0; i < count; ++i) {
    float* row = w.data() + i * cols;
    add_to(*this, first_row + i, row);
    if (magnitude.empty()) continue;
    const double length = length_of({row, static_cast<size_t>(cols)});
    if (length == 0) continue;  // a row of zeros has no direction
    const auto factor = static_cast<float>(
        static_cast<double>(magnitude[static_cast<size_t>(first_row + i)]) / length);
    for (int64_t c = 0; c < cols; ++c) row[c] *= factor;
  }
}

LoraAdapter LoraAdapter::open(const std::filesystem::path& folder) {
  if (!is_file(folder / "adapter_config.json"))
    throw Error(
        ErrorKind::kFile,
        fmt::format("{}: no adapter_config.json there, so this is no adapter", folder.string()),
        "give the folder that PEFT has written");
  LoraAdapter out;
  out.name = folder.filename().empty() ? folder.parent_path().filename().string()
                                       : folder.filename().string();
  AdapterReader(folder, out).read();
  return out;
}

uint64_t LoraAdapter::fingerprint() const noexcept {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto add = [&](const void* data, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 1099511628211u;
  };
  const auto add_floats = [&](const std::vector<float>& values) {
    add(values.data(), values.size() * sizeof(float));
  };
  for (const auto& [tensor, matrix] : matrices) {
    add(tensor.data(), tensor.size());
    add(&matrix.scale, sizeof(matrix.scale));
    for (const auto* values : {&matrix.a, &matrix.b, &matrix.magnitude}) add_floats(*values);
  }
  for (const auto& [tensor, whole] : saved) {
    add(tensor.data(), tensor.size());
    add_floats(whole.values);
  }
  return hash;
}

}  // namespace sluice
