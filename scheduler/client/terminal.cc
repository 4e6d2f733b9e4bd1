#include "scheduler/client/terminal.h"

#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "base/error.h"

namespace modelet::cli {
namespace {

constexpr std::string_view kBetweenFields = "  ";

// The first `columns` characters.
std::string first_characters(const std::string& text, size_t columns) {
  size_t bytes = 0;
  for (size_t seen = 0; bytes < text.size(); ++bytes)
    if ((static_cast<unsigned char>(text[bytes]) & 0xC0) != 0x80 && seen++ == columns) break;
  return text.substr(0, bytes);
}

std::string abbreviated(const std::string& text, size_t columns) {
  constexpr size_t kDots = 3;
  if (width_of(text) <= columns) return text;
  if (columns <= kDots) return first_characters(text, columns);
  return first_characters(text, columns - kDots) + "...";
}

}  // namespace

size_t Terminal::columns() const {
  constexpr size_t kUsual = 80;
  if (width > 0) return width;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

Terminal terminal_of(int fd) {
  if (::isatty(fd) != 1) return {};
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  return {.fd = fd, .colour = variable("NO_COLOR").empty() && variable("TERM") != "dumb"};
}

size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string fitted(const std::string& text, size_t columns) {
  if (width_of(text) <= columns) return text;
  const std::string start = first_characters(text, columns);
  // The last gap between two fields such that the text before it fits.
  const size_t end = text.rfind(kBetweenFields, start.size());
  return end == std::string::npos ? start : text.substr(0, end);
}

std::string wrapped(const std::string& text, size_t columns) {
  std::string result;
  std::string_view indent;
  for (std::string rest = text; !rest.empty();) {
    const std::string start = first_characters(rest, columns - std::min(columns, indent.size()));
    size_t end = start.size() == rest.size() ? start.size() : rest.rfind(kBetweenFields, start.size());
    // A field wider than the terminal stays whole, so that it can be copied.
    if (end == std::string::npos || end == 0) end = std::min(rest.find(kBetweenFields, 1), rest.size());
    if (!result.empty()) result += '\n';
    result.append(indent).append(rest, 0, end);
    rest.erase(0, std::min(rest.find_first_not_of(' ', end), rest.size()));
    indent = kBetweenFields;
  }
  return result;
}

std::string with_bar(double done, const std::string& text, size_t columns) {
  constexpr size_t kShortest = 10, kLongest = 40, kFrame = 3;  // brackets and a space
  const size_t needed = width_of(text) + kFrame;
  if (needed + kShortest > columns) return fitted(text, columns);
  const size_t width = std::min(columns - needed, kLongest);
  const auto filled = static_cast<size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(width));
  return fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(width - filled, '.'), text);
}

void Table::add(std::vector<std::string> cells) {
  MODELET_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

// The columns that are shown, in their order, as pairs of index and width.
std::vector<std::pair<size_t, size_t>> Table::layout(size_t columns) const {
  std::vector<std::pair<size_t, size_t>> shown;  // first with their least width
  std::vector<size_t> wanted;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = width_of(columns_[c].title);
    const size_t least = std::max(width, columns_[c].least);
    for (const auto& row : rows_) width = std::max(width, width_of(row[c]));
    wanted.push_back(width);
    shown.emplace_back(c, columns_[c].least > 0 ? std::min(width, least) : width);
  }
  const auto total = [&] {
    size_t sum = kBetweenFields.size() * (shown.size() - 1);
    for (const auto& [c, width] : shown) sum += width;
    return sum;
  };
  const auto importance = [this](const auto& column) { return columns_[column.first].importance; };
  if (columns == 0) columns = SIZE_MAX;
  while (shown.size() > 1 && total() > columns)
    shown.erase(std::ranges::min_element(shown, std::less(), importance));
  if (total() > columns) shown.front().second = columns;
  size_t room = columns - total();
  for (auto& [c, width] : shown) {
    const size_t more = std::min(room, wanted[c] - std::min(wanted[c], width));
    width += more;
    room -= more;
  }
  return shown;
}

std::string Table::text(size_t columns) const {
  const auto shown = layout(columns);
  std::string result;
  const auto append = [&](const auto& cell_of) {
    std::string line;
    for (const auto& [c, width] : shown) {
      const std::string cell = abbreviated(cell_of(c), width);
      const std::string blanks(width - width_of(cell), ' ');
      if (c != shown.front().first) line += kBetweenFields;
      line += columns_[c].right ? blanks + cell : cell + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  };
  append([&](size_t c) { return columns_[c].title; });
  for (const auto& row : rows_) append([&](size_t c) { return row[c]; });
  return result;
}

}  // namespace modelet::cli
