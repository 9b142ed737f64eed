// Models, plans, profiles, forecasts, conversion.
#include "python/src/binding.h"

namespace sluice::python {

namespace {
std::function<void(std::string_view)> log_of(const std::shared_ptr<Log>& log) {
  if (!log) return {};
  return [log](std::string_view line) { log->add(line); };
}

Options options_of(const py::dict& values, const std::shared_ptr<Log>& log) {
  Options out;
  read(values, "memory_budget_bytes", out.memory_budget_bytes);
  read(values, "disk_budget_bytes", out.disk_budget_bytes);
  read(values, "device_budget_bytes", out.device_budget_bytes);
  read(values, "offload_dir", out.offload_dir);
  read(values, "sequences", out.sequences);
  read(values, "context_tokens", out.context_tokens);
  read(values, "kv_tokens", out.kv_tokens);
  read(values, "predicts_lengths", out.predicts_lengths);
  read(values, "keeps_prefixes", out.keeps_prefixes);
  read(values, "threads", out.threads);
  read(values, "compute", out.compute);
  read(values, "batch_invariant", out.batch_invariant);
  read(values, "kv_dtype", out.kv_dtype);
  read(values, "device", out.device);
  read(values, "gpu", out.gpu);
  read(values, "hardware", out.hardware);
  read(values, "policy", out.policy);
  out.log = log_of(log);
  return out;
}

void add_model(py::module_& module) {
  py::class_<Model>(module, "Model")
      .def_static(
          "open",
          [](const std::string& path, const py::dict& values) {
            ModelOptions options;
            read(values, "rope_scaling", options.rope_scaling);
            read(values, "rope_factor", options.rope_factor);
            read(values, "rope_theta", options.rope_theta);
            read(values, "rope_original", options.rope_original);
            read(values, "context_tokens", options.context_tokens);
            return interruptible([&](std::stop_token) { return Model::open(path, options); });
          })
      .def_property_readonly("family", &Model::family)
      .def_property_readonly("weights", &Model::weights)
      .def_property_readonly("parameters", &Model::parameters)
      .def_property_readonly("weight_bytes", &Model::weight_bytes)
      .def_property_readonly("layers", &Model::layers)
      .def_property_readonly("vocabulary", &Model::vocabulary)
      .def_property_readonly("longest_context", &Model::longest_context)
      .def_property_readonly("end_tokens", &Model::end_tokens)
      .def_property_readonly("notes", &Model::notes)
      .def("embedding_form", [](const Model& model) {
        const EmbeddingForm form = embedding_form(model);
        return py::make_tuple(static_cast<int>(form.pooling), form.is_normalised);
      });
}

void add_plan(py::module_& module) {
  py::class_<Plan>(module, "Plan")
      .def_static("find",
                  [](const Model& model, const py::dict& values, const std::shared_ptr<Log>& log) {
                    const Options options = options_of(values, log);
                    return interruptible([&](std::stop_token stop) {
                      return Plan::find(model, options, std::move(stop));
                    });
                  })
      .def_property_readonly("policy", &Plan::policy)
      .def_property_readonly("table", &Plan::table)
      .def_property_readonly("memory_bytes", &Plan::memory_bytes)
      .def_property_readonly("memory_budget_bytes", &Plan::memory_budget_bytes)
      .def_property_readonly("device_bytes", &Plan::device_bytes)
      .def_property_readonly("disk_bytes", &Plan::disk_bytes)
      .def_property_readonly("streamed_bytes", &Plan::streamed_bytes)
      .def_property_readonly("context_tokens", &Plan::context_tokens)
      .def_property_readonly("sequences", &Plan::sequences)
      .def_property_readonly("tokens_per_second", &Plan::expected_tokens_per_second);
}

void add_profile(py::module_& module) {
  py::class_<Profile>(module, "Profile")
      .def_static("of_this_machine",
                  [](const py::dict& values, const std::shared_ptr<Log>& log) {
                    ProfileOptions options;
                    read(values, "offload_dir", options.offload_dir);
                    read(values, "threads", options.threads);
                    read(values, "quick", options.quick);
                    read(values, "again", options.again);
                    read(values, "keeps", options.keeps);
                    options.log = log_of(log);
                    return interruptible([&](std::stop_token stop) {
                      return Profile::of_this_machine(options, std::move(stop));
                    });
                  })
      .def_static("load", &Profile::load)
      .def_static("names", &Profile::names)
      .def_property_readonly("name", &Profile::name)
      .def_property_readonly("description", &Profile::description)
      .def_property_readonly("date", &Profile::date)
      .def_property_readonly("json", &Profile::json)
      .def_property_readonly("memory_bytes", &Profile::memory_bytes)
      .def_property_readonly("device_bytes", &Profile::device_bytes)
      .def_property_readonly("disk_bytes", &Profile::disk_bytes)
      .def_property_readonly("memory_read", &Profile::memory_read)
      .def_property_readonly("disk_read", &Profile::disk_read)
      .def_property_readonly("disk_write", &Profile::disk_write)
      .def_property_readonly("processor", &Profile::processor)
      .def_property_readonly("device", &Profile::device)
      .def_property_readonly("threads", &Profile::threads);
}

// (tokens a second, seconds of a block, bottleneck, JSON, text).
py::tuple forecast_of(const std::string& model, const py::dict& values,
                      const std::shared_ptr<Log>& log) {
  ForecastOptions options;
  read(values, "hardware", options.hardware);
  read(values, "memory_budget_bytes", options.memory_budget_bytes);
  read(values, "device_budget_bytes", options.device_budget_bytes);
  read(values, "disk_budget_bytes", options.disk_budget_bytes);
  read(values, "prompt_tokens", options.prompt_tokens);
  read(values, "new_tokens", options.new_tokens);
  read(values, "sequences", options.sequences);
  read(values, "objective", options.objective);
  read(values, "latency_bound_seconds", options.latency_bound_seconds);
  read(values, "weights", options.weights);
  read(values, "kv_dtype", options.kv_dtype);
  read(values, "lifts", options.finds_lifts);
  options.log = log_of(log);
  const Forecast out = interruptible(
      [&](std::stop_token stop) { return forecast(model, options, std::move(stop)); });
  return py::make_tuple(out.tokens_per_second, out.latency_seconds, out.bottleneck, out.json,
                        out.text);
}

// (bytes in all, bytes written now).
py::tuple converted(const std::string& model, const std::string& destination,
                    const py::dict& values) {
  ConvertOptions options;
  std::string lora, calibrate, imatrix;
  read(values, "weights", options.weights);
  read(values, "bits", options.bits);
  read(values, "calibrate", calibrate);
  read(values, "calibrate_tokens", options.calibrate_tokens);
  read(values, "imatrix", imatrix);
  read(values, "memory_budget_bytes", options.memory_budget_bytes);
  read(values, "lora", lora);
  read(values, "pretokenizer", options.pretokenizer);
  read(values, "allow_requantise", options.allow_requantise);
  read(values, "overwrite", options.overwrite);
  read(values, "threads", options.threads);
  options.lora = lora;
  options.calibrate = calibrate;
  options.imatrix = imatrix;
  const ConvertReport out = interruptible(
      [&](std::stop_token stop) { return convert(model, destination, options, std::move(stop)); });
  return py::make_tuple(out.total_bytes, out.written_bytes);
}
}  // namespace

void add_planning(py::module_& module) {
  add_model(module);
  add_plan(module);
  add_profile(module);
  module.def("forecast", forecast_of);
  module.def("forecast_models", forecast_models);
  module.def("convert", converted);
}

}  // namespace sluice::python
