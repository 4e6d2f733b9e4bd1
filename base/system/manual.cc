#include "base/system/manual.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/version.h"

namespace modelet {
namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// ---- The table

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_name().empty(); });
}

// The options that the help shows.
std::vector<const CLI::Option*> options_of(const CLI::App& app, bool positional) {
  return app.get_options([positional](const CLI::Option* option) {
    return !option->get_group().empty() && option->get_positional() == positional;
  });
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// The values that an option may have, if they are a few words: CLI11 lists them in the type,
// "TEXT:{none,l2}".
std::vector<std::string> choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

// "INT in [1 - 256]": what CLI11 calls "UINT:INT in [1 - 256]".
std::string value_text(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(type.find(':') + 1);
}

// Visits `app` and all verbs below it; `path`: their names, without the program's, such as "data prepare".
void for_each_verb(const CLI::App& app, const std::string& path,
                   const std::function<void(const CLI::App&, const std::string&)>& visit) {
  visit(app, path);
  for (const CLI::App* verb : verbs_of(app))
    for_each_verb(*verb, path.empty() ? verb->get_name() : path + " " + verb->get_name(), visit);
}

// ---- The manual page (man(7))

std::string roff(const std::string& text) {
  const std::string escaped = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  return (escaped.starts_with('.') || escaped.starts_with('\'') ? "\\&" : "") + escaped;
}

// Lines that begin with two blanks stay as they are; the others are filled.
std::string roff_lines(const std::string& text) {
  std::string result;
  bool as_is = false;
  for (const std::string& line : CLI::detail::split(text, '\n')) {
    const bool indented = line.starts_with("  ");
    if (indented != as_is) result += indented ? ".PP\n.nf\n" : ".fi\n.PP\n";
    as_is = indented;
    if (line.starts_with("Example")) result += ".PP\n";
    result += line.empty() ? ".PP\n" : roff(line) + "\n";
  }
  return result + (as_is ? ".fi\n" : "");
}

std::string roff_options(const CLI::App& app) {
  std::string result;
  for (const bool positional : {true, false}) {
    for (const CLI::Option* option : options_of(app, positional)) {
      const std::string name =
          positional ? option->get_name(true) : fmt::format("{}", fmt::join(spellings(*option), ", "));
      result += fmt::format(".TP\n\\fB{}\\fR", roff(name));
      if (takes_value(*option)) result += fmt::format(" \\fI{}\\fR", roff(value_text(*option)));
      if (option->get_required()) result += " (required)";
      result += "\n" + roff(option->get_description());
      if (!option->get_default_str().empty())
        result += fmt::format("; default: {}", roff(option->get_default_str()));
      if (!option->get_envname().empty())
        result += fmt::format("; also the variable \\fB{}\\fR", roff(option->get_envname()));
      result += "\n";
    }
  }
  return result;
}

std::string manual_page(const CLI::App& program) {
  const std::string name = program.get_name();
  std::string page =
      fmt::format(".TH {} 1 \"\" \"{} {}\" \"Modelet\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
                  CLI::detail::to_lower(name), name, kVersion, roff(name), roff(program.get_description()));
  for_each_verb(program, "", [&](const CLI::App& verb, const std::string& path) {
    if (!verbs_of(verb).empty()) return;
    page += fmt::format(".B {}{}\n[options]", roff(name), path.empty() ? "" : " " + roff(path));
    for (const CLI::Option* option : options_of(verb, true))
      page += fmt::format(" \\fI{}\\fR", roff(option->get_name(true)));
    page += "\n.br\n";
  });
  page += ".SH OPTIONS\n" + roff_options(program);
  if (!verbs_of(program).empty()) page += ".SH VERBS\n";
  for_each_verb(program, "", [&](const CLI::App& verb, const std::string& path) {
    if (path.empty() || !verbs_of(verb).empty()) return;
    page += fmt::format(".SS {}\n{}\n{}", roff(path), roff(verb.get_description()), roff_options(verb));
    if (!verb.get_footer().empty()) page += ".PP\n" + roff_lines(verb.get_footer());
  });
  return page + ".SH NOTES\n" + roff_lines(program.get_footer());
}

// ---- Completions. All shells find the verb in the words before the cursor in the same way: a word is
// appended to the verb if the result is in the list of verbs.

std::string in_quotes(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

struct Completion {
  std::string program, function, paths;  // paths: of all verbs, as patterns of `case`

  explicit Completion(const CLI::App& app)
      : program(app.get_name()), function("_" + replaced(program, "-", "_")) {
    std::vector<std::string> patterns;
    for_each_verb(app, "", [&](const CLI::App& verb, const std::string& path) {
      for (const CLI::App* below : verbs_of(verb))
        patterns.push_back(in_quotes(path + " " + below->get_name()));
    });
    if (patterns.empty()) patterns.push_back("''");
    paths = fmt::format("{}", fmt::join(patterns, "|"));
  }
};

std::string bash_completion(const CLI::App& app) {
  const Completion names(app);
  std::string values, verbs;
  for_each_verb(app, "", [&](const CLI::App& verb, const std::string& path) {
    std::vector<std::string> below, options;
    for (const CLI::App* next : verbs_of(verb)) below.push_back(next->get_name());
    for (const CLI::Option* option : options_of(verb, false))
      for (const std::string& spelling : spellings(*option)) {
        options.push_back(spelling);
        if (const auto words = choices(*option); !words.empty())
          values +=
              fmt::format("    {}) words='{}' ;;\n", in_quotes(path + " " + spelling), fmt::join(words, " "));
      }
    verbs += fmt::format("    {}) words='{}' options='{}' ;;\n", in_quotes(path), fmt::join(below, " "),
                         fmt::join(options, " "));
  });
  // If `words` is empty, readline completes file names.
  return fmt::format(R"(# bash completion of {0}, made by '{0} completion bash'
{1}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} verb='' words='' options='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$verb ${{COMP_WORDS[i]}}" in
      {2}) verb="${{verb:+$verb }}${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$verb" in
{3}  esac
  [[ $current == -* ]] && words=$options
  case "$verb ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{4}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o bashdefault -o default -F {1} {0}
)",
                     names.program, names.function, names.paths, verbs, values);
}

std::string zsh_completion(const CLI::App& app) {
  const Completion names(app);
  const auto described = [](const std::string& text) {
    return replaced(replaced(replaced(replaced(text, "\\", "\\\\"), "[", "\\["), "]", "\\]"), ":", "\\:");
  };
  std::string cases;
  for_each_verb(app, "", [&](const CLI::App& verb, const std::string& path) {
    std::vector<std::string> specs;
    for (const CLI::Option* option : options_of(verb, false))
      for (const std::string& spelling : spellings(*option)) {
        std::string spec = fmt::format("*{}[{}]", spelling, described(option->get_description()));
        if (const auto values = choices(*option); !values.empty())
          spec += fmt::format(":value:({})", fmt::join(values, " "));
        else if (takes_value(*option))
          spec += ":value:_files";
        specs.push_back(in_quotes(spec));
      }
    std::vector<std::string> below;
    for (const CLI::App* next : verbs_of(verb))
      below.push_back(in_quotes(next->get_name() + ":" + described(next->get_description())));
    cases += fmt::format("    {})\n", in_quotes(path));
    if (!below.empty())
      cases +=
          fmt::format("      verbs=({})\n      [[ $PREFIX == -* ]] || {{ _describe verb verbs; return }}\n",
                      fmt::join(below, "\n        "));
    cases += fmt::format("      _arguments {} '*:file:_files' ;;\n", fmt::join(specs, " \\\n        "));
  });
  return fmt::format(R"(#compdef {0}
# zsh completion of {0}, made by '{0} completion zsh'
{1}() {{
  local verb= i
  local -a verbs
  for ((i = 2; i < CURRENT; i++)); do
    case "$verb $words[i]" in
      {2}) verb="${{verb:+$verb }}$words[i]" ;;
    esac
  done
  case "$verb" in
{3}  esac
}}
{1} "$@"
)",
                     names.program, names.function, names.paths, cases);
}

std::string fish_completion(const CLI::App& app) {
  const Completion names(app);
  const std::string at = "_" + names.function + "_at";
  std::string lines;
  const auto quoted = [](const std::string& text) {  // fish knows no '\'' outside of quotes
    return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
  };
  for_each_verb(app, "", [&](const CLI::App& verb, const std::string& path) {
    const std::string start =
        fmt::format("complete -c {} -n {}", names.program, quoted(at + " \"" + path + "\""));
    for (const CLI::App* next : verbs_of(verb))
      lines += fmt::format("{} -f -a {} -d {}\n", start, next->get_name(), quoted(next->get_description()));
    for (const CLI::Option* option : options_of(verb, false)) {
      lines += start;
      for (const std::string& name : option->get_snames()) lines += " -s " + name;
      for (const std::string& name : option->get_lnames()) lines += " -l " + name;
      if (const auto values = choices(*option); !values.empty())
        lines += fmt::format(" -x -a {}", quoted(fmt::format("{}", fmt::join(values, " "))));
      else if (takes_value(*option))
        lines += " -r";
      lines += fmt::format(" -d {}\n", quoted(option->get_description()));
    }
  });
  return fmt::format(R"(# fish completion of {0}, made by '{0} completion fish'
function {1}
  set -l verb ''
  for word in (commandline -opc)[2..-1]
    switch "$verb $word"
      case {2}
        set verb (string trim "$verb $word")
    end
  end
  test "$verb" = "$argv[1]"
end
{3})",
                     names.program, at, replaced(names.paths, "|", " "), lines);
}

std::string completion(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_completion(app);
  if (shell == "zsh") return zsh_completion(app);
  if (shell == "fish") return fish_completion(app);
  throw UsageError("'" + shell + "': there are completions for bash, zsh and fish");
}

}  // namespace

std::optional<std::string> manual_text(const CLI::App& app, int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "man") return manual_page(app);
  if (argc >= 2 && std::string_view(argv[1]) == "completion")
    return completion(app, argc == 3 ? argv[2] : "completion");
  return std::nullopt;
}

}  // namespace modelet
