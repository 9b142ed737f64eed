// sluice manual: the manual pages, as roff with the macros of man(7). One for the program and one
// for each command, from what --help shows; what no parser knows (files, exit codes) is said here.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "src/base/error.h"
#include "tools/interface.h"
#include "tools/nearest.h"

namespace sluice::tools {

namespace {
// Text as roff takes it: nothing of it is a request, and hyphens are what one types.
std::string roff(const std::string& text) {
  std::string out;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    begins_line = c == '\n';
  }
  return out;
}

std::string in_capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string page_name(const std::string& command) {
  return command.empty() ? "sluice" : "sluice-" + command;
}

std::string page_head(const std::string& command, const std::string& description) {
  const std::string name = page_name(command);
  return fmt::format(
      ".\\\" Written by: sluice manual\n.TH {} 1 \"\" \"sluice {}\" \"User Commands\"\n"
      ".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
      roff(in_capitals(name)), SLUICE_VERSION, roff(name), roff(description));
}

std::string value_of(const InterfaceOption& option) {
  if (option.value.empty()) return "";
  if (!option.choices.empty()) return fmt::format("{}", fmt::join(option.choices, "|"));
  return option.value;
}

// The description and, in brackets behind it, what else is to know of an option.
std::string option_text(const InterfaceOption& option) {
  std::vector<std::string> notes;
  if (option.is_required) notes.push_back("required");
  if (!option.standard.empty()) notes.push_back("default: " + option.standard);
  if (!option.environment.empty()) notes.push_back("environment: " + option.environment);
  std::string out = option.description;
  if (!notes.empty()) out += fmt::format("{}[{}]", out.empty() ? "" : " ", fmt::join(notes, "; "));
  return roff(out) + "\n";
}

std::string page_item(const InterfaceOption& option) {
  std::string out = ".TP\n";
  if (!option.argument.empty())
    return out + "\\fI" + roff(option.argument) + "\\fR\n" + option_text(option);
  for (size_t i = 0; i < option.names.size(); ++i)
    out += (i ? ", " : "") + ("\\fB" + roff(option.names[i]) + "\\fR");
  if (const std::string value = value_of(option); !value.empty())
    out += " \\fI" + roff(value) + "\\fR";
  return out + "\n" + option_text(option);
}

std::string options_of(const InterfaceCommand& command) {
  std::vector<std::string> groups;
  for (const InterfaceOption& option : command.options)
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end())
      groups.push_back(option.group);
  std::string out = ".SH OPTIONS\n";
  for (const std::string& group : groups) {
    if (groups.size() > 1 && group != groups.front()) out += ".SS " + roff(group) + "\n";
    for (const InterfaceOption& option : command.options)
      if (option.group == group) out += page_item(option);
  }
  return out;
}

constexpr const char* kExitStatus =
    ".SH EXIT STATUS\n.TP\n0\nit is done\n.TP\n2\nwrong use: an option, a value, a prompt\n"
    ".TP\n3\na file can't be read or written, or is damaged\n"
    ".TP\n4\nmemory or disk does not suffice\n.TP\n5\nthe device failed\n"
    ".TP\n70\na mistake of the program's own\n.TP\n130\nstopped by a signal\n";

std::string command_page(const InterfaceCommand& command, const InterfaceCommands& commands) {
  std::string out = page_head(command.name, command.description);
  std::string usage = ".B sluice " + roff(command.name) + "\n[\\fIOPTIONS\\fR]";
  for (const InterfaceOption& argument : command.arguments) {
    const std::string name =
        "\\fI" + roff(argument.argument) + "\\fR" + (argument.may_repeat ? "..." : "");
    usage += argument.is_required ? " " + name : " [" + name + "]";
  }
  out += usage + "\n";
  if (const auto words = command.words(commands))
    out += ".SH DESCRIPTION\nAlso written as two words:\n.B sluice " + roff(words->first) + " " +
           roff(words->second) + "\n";
  if (!command.arguments.empty()) {
    out += ".SH ARGUMENTS\n";
    for (const InterfaceOption& argument : command.arguments) out += page_item(argument);
  }
  return out + options_of(command) + kExitStatus + ".SH SEE ALSO\n.BR sluice (1)\n";
}

std::string program_page(const InterfaceCommand& program, const InterfaceCommands& commands) {
  std::string out = page_head("", "runs language models that are bigger than the memory");
  out +=
      ".B sluice\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR] ...\n.SH DESCRIPTION\n"
      "What fits stays in memory; the rest of the weights streams from disk while the processor\n"
      "computes. Models are Hugging Face folders, GGUF files or packed stores, named by a path "
      "or,\n"
      "where another program has fetched them, by their name, see\n.BR sluice\\-models (1).\n"
      "Sizes are written 16GiB, 200G, 1.5TiB.\n.SH COMMANDS\n";
  for (const InterfaceCommand& command : commands)
    out += ".TP\n.BR sluice\\-" + roff(command.name) + " (1)\n" + roff(command.description) + "\n";
  out += options_of(program) + kExitStatus;
  out +=
      ".SH FILES\n.TP\n.I ~/.cache/sluice\nmeasured profiles of this machine; "
      "$XDG_CACHE_HOME/sluice where that is set\n"
      ".SH EXAMPLES\n.nf\n"
      "sluice run MODEL \\-p \"Once upon a time\" \\-n 100 \\-\\-cpu\\-mem 4GiB\n"
      "sluice plan opt\\-30b \\-\\-hardware t4\n"
      "sluice serve MODEL \\-\\-port 8000\n.fi\n";
  return out;
}

std::string page_of(const std::string& name, const CLI::App& program) {
  const InterfaceCommands commands = read_commands(program);
  if (name.empty()) return program_page(read_program(program), commands);
  std::vector<std::string> known;
  for (const InterfaceCommand& command : commands) {
    const auto words = command.words(commands);
    if (command.name == name || (words && words->first + " " + words->second == name))
      return command_page(command, commands);
    known.push_back(command.name);
  }
  const auto meant = nearest(name, known);
  throw Error(ErrorKind::kUser, fmt::format("there is no command \"{}\"", name),
              meant ? "did you mean " + *meant + "?" : "sluice --help lists the commands");
}

void write_page(const std::filesystem::path& folder, const std::string& command,
                const CLI::App& program) {
  const std::filesystem::path path = folder / (page_name(command) + ".1");
  std::ofstream file(path, std::ios::binary);
  file << page_of(command, program);
  file.close();
  if (!file) throw Error(ErrorKind::kFile, "can't write " + path.string(), "name another folder");
}

void write_pages(const std::string& folder, const CLI::App& program) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorKind::kFile,
                fmt::format("can't make the folder {}: {}", folder, error.message()),
                "name another");
  write_page(folder, "", program);
  for (const InterfaceCommand& command : read_commands(program))
    write_page(folder, command.name, program);
}
}  // namespace

Command add_manual(CLI::App& program) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto folder = std::make_shared<std::string>();
  CLI::App* parser = program.add_subcommand(
      "manual", "a manual page: sluice manual run | man -l -; --all DIR writes all of them");
  CLI::Option* page =
      parser->add_option("command", *words, "whose page (default: the program's own)")
          ->expected(0, 2);
  parser->add_option("--all", *folder, "write every page into this folder, as sluice-run.1")
      ->excludes(page);
  return {parser, [words, folder, &program](const std::stop_token&) {
            if (!folder->empty()) return write_pages(*folder, program);
            const std::string command = fmt::format("{}", fmt::join(*words, " "));
            std::fputs(page_of(command, program).c_str(), stdout);
          }};
}

}  // namespace sluice::tools
