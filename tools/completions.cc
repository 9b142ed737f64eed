// sluice completions: what a shell offers when the Tab key is pressed. The scripts hold every
// command and option, so that a shell asks nobody; values without a list are completed as files.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "src/base/error.h"
#include "tools/interface.h"

namespace sluice::tools {

namespace {
std::string joined(const std::vector<std::string>& words, std::string_view between) {
  return fmt::format("{}", fmt::join(words, between));
}

// In single quotes, as bash and zsh read them.
std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

// In single quotes, as fish reads them.
std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::vector<std::string> all_names(const InterfaceCommand& command) {
  std::vector<std::string> out;
  for (const InterfaceOption& option : command.options)
    out.insert(out.end(), option.names.begin(), option.names.end());
  return out;
}

// The second words that each command may have: "bench" -> serve, throughput, latency.
std::vector<std::string> second_words(const InterfaceCommand& command,
                                      const InterfaceCommands& commands) {
  std::vector<std::string> out;
  for (const InterfaceCommand& other : commands)
    if (const auto words = other.words(commands); words && words->first == command.name)
      out.push_back(words->second);
  return out;
}

// One case of the script: the options of a command, and what follows one of them.
std::string bash_case(const InterfaceCommand& command, const InterfaceCommands& commands) {
  std::string out =
      fmt::format("    {})\n      options='{}'\n", command.name, joined(all_names(command), " "));
  if (const auto second = second_words(command, commands); !second.empty())
    out += fmt::format("      second='{}'\n", joined(second, " "));
  std::string values;
  std::vector<std::string> free;  // options with any value
  for (const InterfaceOption& option : command.options) {
    if (option.value.empty()) continue;
    if (option.choices.empty())
      free.insert(free.end(), option.names.begin(), option.names.end());
    else
      values += fmt::format("        {}) values='{}' ;;\n", joined(option.names, "|"),
                            joined(option.choices, " "));
  }
  if (!free.empty()) values += fmt::format("        {}) values=file ;;\n", joined(free, "|"));
  if (!values.empty()) out += "      case $previous in\n" + values + "      esac\n";
  return out + "      ;;\n";
}

constexpr const char* kBashHead =
    R"(# bash completion for sluice, written by: sluice completions bash
_sluice() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
  local options= values= second=
  COMPREPLY=()
  if [ "$word" = = ]; then
    word=
  elif [ "$previous" = = ]; then
    previous=${COMP_WORDS[COMP_CWORD-2]}
  fi
)";

// What is left to the shell (COMPREPLY empty) it completes as a file: see the last line.
constexpr const char* kBashTail = R"(  esac
  if [ "$values" = file ]; then
    return
  elif [ -n "$values" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  elif [ "$COMP_CWORD" -eq 2 ] && [ -n "$second" ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -W "$second" -- "$word"; compgen -f -- "$word")
  fi
}
complete -o default -o bashdefault -F _sluice sluice
)";

std::string bash_script(const InterfaceCommand& program, const InterfaceCommands& commands) {
  std::vector<std::string> first = all_names(program);
  std::string pairs, cases;
  for (const InterfaceCommand& command : commands) {
    first.push_back(command.name);
    cases += bash_case(command, commands);
    if (const auto words = command.words(commands))
      pairs +=
          fmt::format("      '{} {}') command={} ;;\n", words->first, words->second, command.name);
  }
  std::string out = kBashHead;
  out += fmt::format(
      "  if [ \"$COMP_CWORD\" -le 1 ]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\")\n    return\n  fi\n",
      joined(first, " "));
  if (!pairs.empty())
    out += "  if [ \"$COMP_CWORD\" -gt 2 ]; then\n    case \"$command ${COMP_WORDS[2]}\" in\n" +
           pairs + "    esac\n  fi\n";
  return out + "  case $command in\n" + cases + kBashTail;
}

// Inside the brackets of an _arguments specification.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == '\\' || c == ':') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_value(const InterfaceOption& option) {
  if (option.value.empty()) return "";
  const std::string name = zsh_text(option.value);
  if (option.choices.empty()) return ":" + name + ":_files";
  return fmt::format(":{}:({})", name, joined(option.choices, " "));
}

// One line for each spelling; each leaves out the others when one has been given.
std::string zsh_option(const InterfaceOption& option) {
  std::string out;
  for (const std::string& name : option.names) {
    std::string spec = option.may_repeat ? "*" : fmt::format("({})", joined(option.names, " "));
    spec += name;
    if (!option.value.empty()) spec += name.starts_with("--") ? "=" : "+";
    spec += "[" + zsh_text(option.description) + "]" + zsh_value(option);
    out += "        " + in_quotes(spec) + " \\\n";
  }
  return out;
}

std::string zsh_case(const InterfaceCommand& command, const InterfaceCommands& commands) {
  std::string out = fmt::format("    {})\n", command.name);
  if (const auto second = second_words(command, commands); !second.empty())
    out += fmt::format("      (( CURRENT == 2 )) && compadd -- {}\n", joined(second, " "));
  out += "      _arguments -s -S \\\n";
  for (const InterfaceOption& option : command.options) out += zsh_option(option);
  return out + "        '*:file:_files'\n      ;;\n";
}

std::string zsh_script(const InterfaceCommand& program, const InterfaceCommands& commands) {
  std::string names, pairs, cases;
  for (const InterfaceCommand& command : commands) {
    names += "      " + in_quotes(command.name + ":" + command.description) + "\n";
    cases += zsh_case(command, commands);
    if (const auto words = command.words(commands))
      pairs += fmt::format(
          "      '{} {}') words=(sluice {} \"${{(@)words[4,-1]}}\"); "
          "(( CURRENT-- )) ;;\n",
          words->first, words->second, command.name);
  }
  std::string out =
      "#compdef sluice\n# zsh completion for sluice, written by: sluice completions zsh\n"
      "_sluice() {\n  local -a commands\n  if (( CURRENT == 2 )); then\n    commands=(\n" +
      names + "    )\n    _describe -t commands 'command' commands\n";
  out += fmt::format("    compadd -- {}\n    return\n  fi\n", joined(all_names(program), " "));
  if (!pairs.empty())
    out += "  if (( CURRENT > 3 )); then\n    case \"$words[2] $words[3]\" in\n" + pairs +
           "    esac\n  fi\n";
  return out + "  shift words\n  (( CURRENT-- ))\n  case $words[1] in\n" + cases +
         "  esac\n}\n"
         "if [ \"$funcstack[1]\" = _sluice ]; then _sluice \"$@\"; else compdef _sluice sluice; "
         "fi\n";
}

constexpr const char* kFishHead =
    R"(# fish completion for sluice, written by: sluice completions fish
function __sluice_command
    set -l words (commandline -opc)
    test (count $words) -gt 1; or return 1
    set -l command $words[2]
    if test (count $words) -gt 2; and contains -- "$words[2]-$words[3]" $__sluice_two_words
        set command "$words[2]-$words[3]"
    end
    test "$command" = "$argv[1]"
end
function __sluice_first
    test (count (commandline -opc)) -eq 1
end
)";

std::string fish_option(const InterfaceOption& option, const std::string& condition) {
  std::string out = "complete -c sluice -n " + condition;
  for (const std::string& name : option.names)
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  if (!option.value.empty()) out += option.choices.empty() ? " -r -F" : " -x";
  if (!option.choices.empty()) out += " -a " + fish_quoted(joined(option.choices, " "));
  return out + " -d " + fish_quoted(option.description) + "\n";
}

std::string fish_script(const InterfaceCommand& program, const InterfaceCommands& commands) {
  std::vector<std::string> pairs;
  std::string out;
  for (const InterfaceOption& option : program.options)
    out += fish_option(option, "__sluice_first");
  for (const InterfaceCommand& command : commands) {
    if (command.words(commands)) pairs.push_back(command.name);
    out += fmt::format("complete -c sluice -f -n __sluice_first -a {} -d {}\n", command.name,
                       fish_quoted(command.description));
    const std::string condition = fish_quoted("__sluice_command " + command.name);
    for (const std::string& second : second_words(command, commands))
      out += fmt::format(
          "complete -c sluice -n '__sluice_command {}; and test (count (commandline -opc)) -eq 2' "
          "-a {}\n",
          command.name, second);
    for (const InterfaceOption& option : command.options) out += fish_option(option, condition);
  }
  return kFishHead + fmt::format("set -g __sluice_two_words {}\n", joined(pairs, " ")) + out;
}
}  // namespace

Command add_completions(CLI::App& program) {
  auto shell = std::make_shared<std::string>();
  CLI::App* parser = program.add_subcommand(
      "completions", "a script that completes commands and options: bash, zsh or fish");
  parser->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return {parser, [shell, &program](const std::stop_token&) {
            const InterfaceCommands commands = read_commands(program);
            const InterfaceCommand own = read_program(program);
            const std::string script = *shell == "bash"  ? bash_script(own, commands)
                                       : *shell == "zsh" ? zsh_script(own, commands)
                                                         : fish_script(own, commands);
            std::fputs(script.c_str(), stdout);
          }};
}

}  // namespace sluice::tools
