#include "tools/interface.h"

#include <algorithm>

namespace sluice::tools {

namespace {
// The parser describes a value as "TEXT:{auto,f32}", "INT:NONNEGATIVE" or "FLOAT".
std::vector<std::string> choices_of(const std::string& type) {
  std::vector<std::string> out;
  const size_t open = type.find('{');
  const size_t close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return out;
  for (size_t at = open + 1; at <= close;) {
    const size_t end = std::min(type.find(',', at), close);
    out.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

InterfaceOption read_option(const CLI::Option& option) {
  InterfaceOption out;
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() > 0 && option.get_expected_max() > 0) {
    out.value = type.substr(0, type.find(':'));
    if (option.get_expected_max() > 1 && option.get_expected_max() == option.get_expected_min())
      out.value += " x " + std::to_string(option.get_expected_max());
    out.choices = choices_of(type);
  }
  out.description = option.get_description();
  out.group = option.get_group();
  out.environment = option.get_envname();
  out.standard = option.get_default_str();
  out.is_required = option.get_required();
  out.may_repeat = option.get_expected_max() > 1 && out.value.find(" x ") == std::string::npos;
  return out;
}

InterfaceCommand read_command(const CLI::App& parser) {
  InterfaceCommand out;
  out.name = parser.get_name();
  out.description = parser.get_description();
  for (const CLI::Option* option : parser.get_options()) {
    if (option->get_group().empty()) continue;
    InterfaceOption read = read_option(*option);
    if (option->get_positional()) {
      InterfaceOption argument = read;
      argument.names.clear();
      argument.argument = option->get_name(/*positional=*/true);
      out.arguments.push_back(argument);
    }
    if (option->nonpositional()) out.options.push_back(std::move(read));
  }
  return out;
}
}  // namespace

std::optional<std::pair<std::string, std::string>> InterfaceCommand::words(
    const std::vector<InterfaceCommand>& commands) const {
  const size_t hyphen = name.find('-');
  if (hyphen == std::string::npos) return std::nullopt;
  const std::string first = name.substr(0, hyphen);
  for (const InterfaceCommand& other : commands)
    if (other.name == first) return std::pair(first, name.substr(hyphen + 1));
  return std::nullopt;
}

InterfaceCommands read_commands(const CLI::App& program) {
  InterfaceCommands out;
  for (const CLI::App* parser : program.get_subcommands([](const CLI::App* one) {
         return !one->get_group().empty() && !one->get_name().empty();
       }))
    out.push_back(read_command(*parser));
  return out;
}

InterfaceCommand read_program(const CLI::App& program) {
  InterfaceCommand out = read_command(program);
  out.name.clear();
  return out;
}

}  // namespace sluice::tools
