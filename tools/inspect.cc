// sluice inspect: what is in a checkpoint, a packed store or a weight file.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/packed_store.h"
#include "kernels/cpu/isa.h"
#include "src/app/end_tokens.h"
#include "src/app/mixed_formats.h"
#include "src/app/model_tokenizer.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/printable.h"
#include "src/engine/packed_weights.h"
#include "src/model/bound_model.h"
#include "src/text/utf8.h"
#include "tools/command.h"
#include "tools/flag_words.h"
#include "tools/model_argument.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct InspectFlags {
  std::string path, pretokenizer;
  bool tensors = false, verify = false, kernels = false, json = false;
};

nlohmann::ordered_json shape_json(const ModelShape& shape) {
  return {
      {"family", shape.family},
      {"layers", shape.num_layers},
      {"hidden_size", shape.hidden_size},
      {"intermediate_size", shape.intermediate_size},
      {"heads", shape.num_heads},
      {"kv_heads", shape.num_kv_heads},
      {"head_dim", shape.head_dim},
      {"vocab_size", shape.vocab_size},
      {"max_positions", shape.max_positions},
      {"parameters", shape.num_parameters()},
      {"weight_dtype", shape.weights_name()},
      {"weight_bytes", shape.weight_bytes()},
      {"kv_bytes_per_token", shape.state_elements_per_token() * dtype_bytes(shape.weight_dtype)},
      {"state_bytes_per_sequence", shape.fixed_state_bytes()}};
}

nlohmann::ordered_json describe(const InspectFlags& flags) {
  const io::Checkpoint checkpoint = io::Checkpoint::open(flags.path);
  const io::CheckpointSummary summary = io::summarize(checkpoint);
  nlohmann::ordered_json json{{"path", flags.path},
                              {"format", io::checkpoint_format_name(summary.format)},
                              {"files", summary.file_count},
                              {"file_bytes", summary.file_bytes},
                              {"tensors", summary.tensor_count},
                              {"parameters", summary.parameters},
                              {"tensor_bytes", summary.tensor_bytes}};
  for (const auto& [name, bytes] : summary.bytes_by_dtype) json["bytes_by_dtype"][name] = bytes;
  if (flags.tensors)
    for (const io::TensorEntry& tensor : checkpoint.tensors())
      json["tensor_list"].push_back(
          {{"name", tensor.name},
           {"dtype", io::element_name(tensor)},
           {"shape", tensor.shape},
           {"file",
            checkpoint.files()[static_cast<size_t>(tensor.file_index)].path.filename().string()},
           {"offset", tensor.offset},
           {"bytes", tensor.bytes}});
  std::vector<EndToken> ends;
  if (!checkpoint.config_text().empty() || checkpoint.format() == io::CheckpointFormat::kGguf) {
    try {
      const BoundModel model = BoundModel::open(flags.path);
      json["model"] = shape_json(model.shape());
      if (model.shape().is_quantised()) {
        json["model"]["bits_a_weight"] = app::bits_a_weight(model.shape());
        json["model"]["mix"] = app::mix_of(model.shape());
      }
      for (const std::string& note : model.notes()) json["notes"].push_back(in_flags(note));
      ends = app::end_tokens(model);
      if (!model.foreign_method().empty())
        json["notes"].push_back(
            fmt::format("{} weights run as they lie, {}; sluice convert makes a store of them",
                        model.foreign_method(),
                        streams_as_it_lies(model) ? "larger than memory too, repacked as they come"
                                                  : "where they fit into memory"));
    } catch (const Error& error) {
      json["notes"].push_back(fmt::format("does not run: {}", in_flags(error.what())));
    }
  }
  try {
    if (const auto tokenizer = app::find_tokenizer(flags.path, flags.pretokenizer)) {
      json["tokenizer"] = tokenizer->description();
      for (EndToken& end : ends)
        if (end.text.empty()) end.text = tokenizer->token_bytes(end.id);
    }
  } catch (const Error& error) {
    json["tokenizer"] = fmt::format("can't be read: {}", in_flags(error.what()));
  }
  for (const EndToken& end : ends)
    json["ends"].push_back(
        {{"id", end.id}, {"token", text::mend_utf8(end.text)}, {"from", end.from}});
  return json;
}

void print_plain(const nlohmann::ordered_json& json) {
  const auto bytes = [&](const nlohmann::ordered_json& value) {
    return format_bytes(value.get<int64_t>());
  };
  std::printf("%s: %s, %lld files, %s\n", json["path"].get<std::string>().c_str(),
              json["format"].get<std::string>().c_str(),
              static_cast<long long>(json["files"].get<int64_t>()),
              bytes(json["file_bytes"]).c_str());
  std::printf("  tensors    %lld, %.4g million parameters\n",
              static_cast<long long>(json["tensors"].get<int64_t>()),
              json["parameters"].get<double>() / 1e6);
  if (json.contains("bytes_by_dtype"))
    for (const auto& [name, count] : json["bytes_by_dtype"].items())
      std::printf("  %-10s %s\n", name.c_str(), bytes(count).c_str());
  if (json.contains("model")) {
    const auto& model = json["model"];
    std::printf(
        "  model      %s, %lld layers, hidden %lld, heads %lld (KV %lld) x %lld, vocabulary %lld, "
        "positions %lld\n",
        model["family"].get<std::string>().c_str(),
        static_cast<long long>(model["layers"].get<int64_t>()),
        static_cast<long long>(model["hidden_size"].get<int64_t>()),
        static_cast<long long>(model["heads"].get<int64_t>()),
        static_cast<long long>(model["kv_heads"].get<int64_t>()),
        static_cast<long long>(model["head_dim"].get<int64_t>()),
        static_cast<long long>(model["vocab_size"].get<int64_t>()),
        static_cast<long long>(model["max_positions"].get<int64_t>()));
    std::printf("  resident   %s of %s weights; KV %s a token%s\n",
                bytes(model["weight_bytes"]).c_str(),
                model["weight_dtype"].get<std::string>().c_str(),
                bytes(model["kv_bytes_per_token"]).c_str(),
                model["state_bytes_per_sequence"].get<int64_t>() > 0
                    ? (", " + bytes(model["state_bytes_per_sequence"]) + " a sequence").c_str()
                    : "");
  }
  if (json.contains("model") && json["model"].contains("mix"))
    std::printf("  matrices   %s: %.4g bits a weight\n",
                json["model"]["mix"].get<std::string>().c_str(),
                json["model"]["bits_a_weight"].get<double>());
  if (json.contains("tokenizer"))
    std::printf("  tokenizer  %s\n", json["tokenizer"].get<std::string>().c_str());
  if (json.contains("ends")) {
    std::string line;
    for (const auto& end : json["ends"])
      line +=
          fmt::format("{}{} {} ({})", line.empty() ? "" : ", ", end["id"].get<int64_t>(),
                      printable(end["token"].get<std::string>()), end["from"].get<std::string>());
    std::printf("  ends       %s\n", line.c_str());
  }
  if (json.contains("notes"))
    for (const auto& note : json["notes"])
      std::printf("  note       %s\n", printable(note.get<std::string>()).c_str());
  if (json.contains("tensor_list"))
    for (const auto& tensor : json["tensor_list"])
      std::printf(
          "  %-5s %-60s %-18s %12s at %lld in %s\n", tensor["dtype"].get<std::string>().c_str(),
          printable(tensor["name"].get<std::string>()).c_str(), tensor["shape"].dump().c_str(),
          bytes(tensor["bytes"]).c_str(), static_cast<long long>(tensor["offset"].get<int64_t>()),
          tensor["file"].get<std::string>().c_str());
}

void print_verified(const nlohmann::ordered_json& json) {
  const auto small = json["verified_small_files"].get<int64_t>();
  std::printf(
      "  checksums  %s verified, %s\n", format_bytes(json["verified_bytes"].get<int64_t>()).c_str(),
      small > 0 ? fmt::format("weights and {} small files (config, tokenizer)", small).c_str()
                : "weights alone: a store from before config and tokenizer had checksums");
}

void run(const InspectFlags& flags, std::stop_token stop) {
  if (flags.kernels && !flags.json) std::printf("%s", kernels::describe_kernels().c_str());
  if (flags.path.empty()) {
    if (flags.kernels && flags.json) print_json({{"kernels", kernels::describe_kernels()}});
    if (flags.kernels) return;
    throw Error(ErrorKind::kUser, "no path", "give a model folder or a weight file, or --kernels");
  }
  nlohmann::ordered_json json = describe(flags);
  if (flags.kernels) json["kernels"] = kernels::describe_kernels();
  if (flags.verify) {
    if (!io::is_packed_store(flags.path))
      throw Error(ErrorKind::kUser, "--verify: " + flags.path + " is not a packed store",
                  "only packed stores have checksums");
    std::atomic<bool> stopped{false};
    const std::stop_callback callback(stop, [&] { stopped = true; });
    Progress progress("verifying");
    json["verified_bytes"] = io::verify_store(flags.path, progress.shows_verifying(), &stopped);
    json["verified_small_files"] = io::read_packed_index(flags.path).small_files.size();
  }
  if (flags.json)
    print_json(json);
  else
    print_plain(json);
  if (flags.verify && !flags.json) print_verified(json);
}
}  // namespace

Command add_inspect(CLI::App& program) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* parser =
      program.add_subcommand("inspect", "what is in a checkpoint, a packed store or a weight file");
  take_model_names(parser->add_option(
      "path", flags->path, "model folder, weight file, or a name that `sluice models` lists"));
  add_pretokenizer_option(*parser, flags->pretokenizer);
  parser->add_flag("--tensors", flags->tensors, "list every tensor");
  parser->add_flag("--verify", flags->verify,
                   "read a packed store, config and tokenizer too, and compare its checksums");
  parser->add_flag("--kernels", flags->kernels, "which kernels this CPU runs");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
