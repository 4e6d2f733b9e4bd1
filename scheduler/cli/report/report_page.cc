#include "scheduler/cli/report/report_page.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "scheduler/dashboard/assets.h"

namespace modelet::cli {
namespace {

// A module comes after those that it imports. All together are one script.
constexpr const char* kModules[] = {"text.js", "dom.js", "series.js", "charts.js", "parts.js", "report.js"};

std::string_view asset_text(const char* name) {
  const scheduler::Asset* const asset = scheduler::asset_named(name);
  MODELET_CHECK(asset != nullptr, name);
  return asset->text;
}

std::string without_imports(std::string_view module) {
  std::string text;
  while (!module.empty()) {
    const std::string_view line = module.substr(0, module.find('\n'));
    module.remove_prefix(std::min(line.size() + 1, module.size()));
    if (line.starts_with("import ")) continue;
    text.append(line).append("\n");
  }
  return text;
}

// JSON in which nothing can end the element that contains it.
std::string json_in_html(const nlohmann::json& object) {
  std::string escaped;
  for (const char c : object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    if (c == '<')
      escaped += "\\u003c";
    else
      escaped += c;
  }
  return escaped;
}

}  // namespace

std::string report_page(const nlohmann::json& report) {
  std::string script;
  for (const char* module : kModules) script += without_imports(asset_text(module));
  // The policy lets the file ask nobody for anything, whatever is in it.
  return fmt::format(
      R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>Modelet</title>
<style>
{}
{}</style>
</head>
<body>
<main id="main"></main>
<noscript><p>This report needs JavaScript.</p></noscript>
<script type="application/json" id="report">{}</script>
<script>
/*
{}*/
{}</script>
<script type="module">
{}</script>
</body>
</html>
)",
      asset_text("uplot.css"), asset_text("style.css"), json_in_html(report), asset_text("uplot-license.txt"),
      asset_text("uplot.js"), script);
}

}  // namespace modelet::cli
