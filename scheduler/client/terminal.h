// Output for a terminal: its width, whether it has colours, and text that fits. Text here consists of fields
// with two spaces between them. Where there is little room whole fields are left out, because half a number
// would be another number. Widths count characters (code points of UTF-8). Stateless.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace modelet::cli {

struct Terminal {
  int fd = -1;       // of an open terminal; -1: there is none, or a test says what it is like
  size_t width = 0;  // columns that a test wants; 0: those of fd
  bool colour = false;

  bool there() const { return fd >= 0 || width > 0; }
  size_t columns() const;  // asked anew each time, because windows are resized
};

// The terminal at `fd`, if it is one. Colours are used only where they are understood (TERM) and not unwanted
// (NO_COLOR, https://no-color.org).
Terminal terminal_of(int fd);

size_t width_of(const std::string& text);

// `text` without the last fields that do not fit.
std::string fitted(const std::string& text, size_t columns);

// `text` on as many lines as it needs, broken between fields; lines after the first are indented.
std::string wrapped(const std::string& text, size_t columns);

// "[####......] text", at most `columns` wide. The bar, filled by `done` in [0, 1], takes the room that the
// text leaves. Where there is little room the bar is left out first, then the last fields of the text.
std::string with_bar(double done, const std::string& text, size_t columns);

// A table of text that fits the terminal: every column is as wide as its widest cell. Where there is too
// little room, columns that may be shortened are shortened first; then columns are left out, the least
// important first; and at last the only one left is shortened.
class Table {
 public:
  struct Column {
    std::string title;
    int importance = 0;  // larger: stays longer
    bool right = true;   // aligned, as numbers are
    size_t least = 0;    // its cells may be cut down to this width; 0: may not be cut
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);  // one a column
  std::string text(size_t columns) const;    // with line ends; columns 0: as wide as it needs

 private:
  std::vector<std::pair<size_t, size_t>> layout(size_t columns) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace modelet::cli
