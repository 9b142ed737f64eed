#pragma once
// The program's commands and options as values, read off the parser that runs them: shell
// completions and manual pages are made of these, so neither names what is not there. Options
// without a group are not for people and stay out, as they do in --help.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/command.h"

namespace sluice::tools {

/// One option, or one argument that is known by its place.
struct InterfaceOption {
  std::vector<std::string> names;    ///< "-m", "--model"; of an argument none
  std::string argument;              ///< an argument's name ("model"); empty for options
  std::string value;                 ///< what follows it ("TEXT"); empty: nothing does
  std::vector<std::string> choices;  ///< all the values there are; empty: any
  std::string description;
  std::string group;        ///< "Budgets"
  std::string environment;  ///< variable that stands for it; empty: none
  std::string standard;     ///< value where it is not given; empty: not said
  bool is_required = false;
  bool may_repeat = false;
};

/// A command, or (with an empty name) the program itself.
struct InterfaceCommand {
  std::string name;  ///< "bench-serve"
  std::string description;
  std::vector<InterfaceOption> arguments;  ///< in their order
  std::vector<InterfaceOption> options;

  /// "bench" and "serve" of a command that is also written as two words; `commands` are all.
  std::optional<std::pair<std::string, std::string>> words(
      const std::vector<InterfaceCommand>& commands) const;
};

/// In the order of --help.
using InterfaceCommands = std::vector<InterfaceCommand>;

/// All commands.
InterfaceCommands read_commands(const CLI::App& program);
/// The program's own options.
InterfaceCommand read_program(const CLI::App& program);

/// Adds `sluice completions SHELL`, and `sluice manual [COMMAND]`.
Command add_completions(CLI::App& program);
Command add_manual(CLI::App& program);

}  // namespace sluice::tools
