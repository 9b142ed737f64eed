#include <fmt/format.h>

#include "src/text/steps.h"

namespace sluice::text {

namespace {
Template make_template_processing(const Field& json) {
  Template result;
  const Field single = json.at("single");
  if (!single.is_array()) single.refuse("not a list");
  bool seen_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const Field piece = single.at(i);
    if (piece.has("Sequence")) {
      if (seen_text) piece.refuse("the text stands twice in the template");
      seen_text = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id").text();
    const Field ids = json.at("special_tokens").at(name).at("ids");
    if (!ids.is_array()) ids.refuse("not a list");
    for (size_t k = 0; k < ids.size(); ++k)
      (seen_text ? result.after : result.before).push_back(ids.at(k).integer());
  }
  return result;
}
}  // namespace

Template make_template(const Field& json) {
  const std::string type = json.type();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return make_template_processing(json);
  if (type == "RobertaProcessing" || type == "BertProcessing")
    return {{json.at("cls").at(1).integer()}, {json.at("sep").at(1).integer()}};
  if (type == "Sequence") {
    Template result;
    const Field list = json.at("processors");
    for (size_t i = 0; i < list.size(); ++i) {
      const Template inner = make_template(list.at(i));
      result.before.insert(result.before.begin(), inner.before.begin(), inner.before.end());
      result.after.insert(result.after.end(), inner.after.begin(), inner.after.end());
    }
    return result;
  }
  json.refuse(fmt::format("post-processor type \"{}\" is not supported", type));
}

}  // namespace sluice::text
