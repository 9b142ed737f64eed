#include "tools/line_reader.h"

#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/base/error.h"
#include "src/text/utf8.h"
#include "tools/interrupts.h"
#include "tools/typed_history.h"

namespace sluice::tools {

namespace {
constexpr int kLookMs = 100;  // how long a request to stop may wait
constexpr size_t kLongestLine = 16 << 20;

// Waits until there is input (or its end). False: nothing yet.
bool has_input() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, kLookMs) > 0;
}

// Bytes that came; 0 at the end, -1 for none this time.
ssize_t read_input(char* to, size_t size) {
  const ssize_t count = read(STDIN_FILENO, to, size);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return -1;
  return count < 0 ? 0 : count;
}

class PlainLines final : public LineReader {
 public:
  LineReader::Line next(std::stop_token stop) override {
    size_t searched = 0;
    for (;;) {
      if (const size_t end = pending_.find('\n', searched); end != std::string::npos) {
        Line line{Line::Kind::kText, pending_.substr(0, end)};
        pending_.erase(0, end + 1);
        return line;
      }
      searched = pending_.size();
      if (pending_.size() > kLongestLine)
        throw Error(ErrorKind::kUser, fmt::format("a line of more than {} MiB", kLongestLine >> 20),
                    "write a newline behind each message");
      if (is_at_end_) {
        if (pending_.empty()) return {};
        return {Line::Kind::kText, std::exchange(pending_, {})};
      }
      if (stop.stop_requested()) return {};
      if (!has_input()) continue;
      char bytes[4096];
      const ssize_t count = read_input(bytes, sizeof bytes);
      is_at_end_ = count == 0;
      if (count > 0) pending_.append(bytes, static_cast<size_t>(count));
    }
  }
  bool was_interrupted() override { return false; }
  bool is_terminal() const override { return false; }

 private:
  std::string pending_;
  bool is_at_end_ = false;
};

std::wstring widen(std::string_view utf8) {
  std::wstring out;
  while (!utf8.empty()) out += static_cast<wchar_t>(text::take_character(utf8));
  return out;
}

std::string narrow(std::wstring_view wide) {
  std::string out;
  for (wchar_t c : wide) text::append_utf8(out, static_cast<uint32_t>(c));
  return out;
}

// libedit writes characters as the locale has them.
void set_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

class EditedLines final : public LineReader {
 public:
  explicit EditedLines(std::optional<TypedHistory> kept)
      : kept_(std::move(kept)), history_(history_winit()) {
    set_utf8_locale();
    FILE* screen = isatty(STDOUT_FILENO) ? stdout : stderr;
    editor_ = el_init("sluice", stdin, screen, stderr);
    if (!editor_ || !history_)
      throw Error(ErrorKind::kResource, "no line editor for this terminal",
                  "set TERM, or give the messages through a pipe");
    HistEventW event{};
    history_w(history_, &event, H_SETSIZE, 2000);
    history_w(history_, &event, H_SETUNIQUE, 1);
    if (kept_)
      for (const std::string& line : kept_->lines())
        history_w(history_, &event, H_ENTER, widen(line).c_str());
    el_wset(editor_, EL_CLIENTDATA, this);
    el_wset(editor_, EL_PROMPT, &EditedLines::prompt);
    el_wset(editor_, EL_EDITOR, L"emacs");
    el_wset(editor_, EL_HIST, history_w, history_);
    el_wset(editor_, EL_GETCFN, &EditedLines::read_character);
    el_wset(editor_, EL_SIGNAL, 1);  // the terminal's size, and Ctrl-Z
    el_wset(editor_, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
    el_source(editor_, nullptr);  // ~/.editrc: a person's own keys
  }
  ~EditedLines() override {
    if (editor_) el_end(editor_);
    if (history_) history_wend(history_);
  }
  EditedLines(const EditedLines&) = delete;
  EditedLines& operator=(const EditedLines&) = delete;

  LineReader::Line next(std::stop_token stop) override {
    stop_ = std::move(stop);
    was_interrupted_ = has_typed_ = false;
    int count = 0;
    // Before the prompt shows: what is typed at it is the editor's, and not lost at Ctrl-C.
    el_wset(editor_, EL_PREP_TERM, 1);
    const wchar_t* typed = el_wgets(editor_, &count);
    if (was_interrupted_) {
      std::fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
      return {Line::Kind::kInterrupted, {}, has_typed_};
    }
    if (!typed || count <= 0) return {};
    std::wstring_view line(typed, static_cast<size_t>(count));
    if (line.ends_with(L'\n')) line.remove_suffix(1);
    Line out{Line::Kind::kText, narrow(line)};
    remember(out.text);
    return out;
  }
  bool was_interrupted() override { return interrupts_.take(); }
  bool is_terminal() const override { return true; }

 private:
  static wchar_t* prompt(EditLine*) {
    static wchar_t text[] = L"> ";
    return text;
  }

  static bool is_empty(EditLine* editor) {
    const LineInfoW* line = el_wline(editor);
    return line->lastchar == line->buffer;
  }

  // One character; 0 ends the line: at the input's end, when asked to stop, and for Ctrl-C.
  static int read_character(EditLine* editor, wchar_t* to) {
    void* data = nullptr;
    el_wget(editor, EL_CLIENTDATA, &data);
    auto& self = *static_cast<EditedLines*>(data);
    std::string bytes;
    for (;;) {
      if (self.interrupts_.take()) {
        self.was_interrupted_ = true;
        self.has_typed_ = !is_empty(editor);
        return 0;
      }
      if (self.stop_.stop_requested()) return 0;
      if (!has_input()) continue;
      char byte = 0;
      const ssize_t count = read_input(&byte, 1);
      if (count < 0) continue;
      if (count == 0) return 0;
      // Ctrl-D of before the prompt, when the terminal took it for the end of a line.
      if (byte == 0 && is_empty(editor)) return 0;
      bytes += byte;
      if (text::complete_prefix(bytes) < bytes.size()) continue;
      const bool is_character = !text::first_invalid_utf8(bytes);
      std::string_view rest = bytes;
      if (is_character) *to = static_cast<wchar_t>(text::take_character(rest));
      if (is_character) return 1;
      bytes.clear();
    }
  }

  void remember(const std::string& line) {
    if (line.empty()) return;
    HistEventW event{};
    history_w(history_, &event, H_ENTER, widen(line).c_str());
    if (kept_) kept_->add(line);
  }

  InterruptCounter interrupts_;
  std::optional<TypedHistory> kept_;
  HistoryW* history_;
  EditLine* editor_ = nullptr;
  std::stop_token stop_;
  bool was_interrupted_ = false;
  bool has_typed_ = false;
};
}  // namespace

std::unique_ptr<LineReader> LineReader::open(const std::optional<std::string>& history) {
  if (!isatty(STDIN_FILENO) || !(isatty(STDOUT_FILENO) || isatty(STDERR_FILENO)))
    return std::make_unique<PlainLines>();
  std::optional<TypedHistory> kept;
  try {
    if (history) kept.emplace(*history);
  } catch (const Error& error) {
    std::fprintf(stderr, "sluice: what is typed is not kept: %s\n", error.what());
  }
  return std::make_unique<EditedLines>(std::move(kept));
}

std::optional<std::string> chat_history_path() {
  if (const char* xdg = std::getenv("XDG_STATE_HOME"); xdg && *xdg)
    return std::string(xdg) + "/sluice/chat_history";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::string(home) + "/.local/state/sluice/chat_history";
  return std::nullopt;
}

}  // namespace sluice::tools
