// Output for a terminal: its width, whether it has colours, and text that fits. Text here consists of fields
// with two spaces between them. If there is too little room, whole fields are left out, because half a number
// would be a different number. Widths count characters (code points of UTF-8). Stateless.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace modelet::cli {

struct Terminal {
  int fd = -1;       // of an open terminal; -1: there is none, or a test sets `width`
  size_t width = 0;  // columns that a test sets; 0: the width of the terminal
  bool colour = false;

  bool there() const { return fd >= 0 || width > 0; }
  size_t columns() const;  // asks each time, because windows are resized
};

// The terminal at `fd`, if it is one. Colours are used only if TERM says that the terminal understands them
// and NO_COLOR is not set (https://no-color.org).
Terminal terminal_of(int fd);

size_t width_of(const std::string& text);

// `text` without the last fields that do not fit.
std::string fitted(const std::string& text, size_t columns);

// `text` on as many lines as it needs, broken between fields; lines after the first are indented.
std::string wrapped(const std::string& text, size_t columns);

// "[####......] text", at most `columns` wide. The bar is filled up to `done` in [0, 1], and takes the room
// that the text leaves. If there is little room, the bar is left out first, then the last fields of the text.
std::string with_bar(double done, const std::string& text, size_t columns);

// A table of text that fits the terminal. Every column is as wide as its widest cell. If there is too little
// room, the columns that may be shortened are shortened first. Then columns are left out, the least important
// first. If only one column is left, it is shortened.
class Table {
 public:
  struct Column {
    std::string title;
    int importance = 0;  // columns with less are left out first
    bool right = true;   // aligned to the right, as numbers are
    size_t least = 0;    // its cells may be cut to this width; 0: they may not be cut
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);  // one for each column
  std::string text(size_t columns) const;    // lines with their ends; columns 0: no limit

 private:
  std::vector<std::pair<size_t, size_t>> layout(size_t columns) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace modelet::cli
