// SPDX-License-Identifier: Apache-2.0
#include "kl/corpus_recipe.h"

#include <algorithm>
#include <iterator>

namespace rorqual::kl {
namespace {

constexpr CorpusPackage kPackages[] = {
    // Prose.
    {"gnome-user-docs", "43.0-2", "CC-BY-SA-3.0"},
    {"installation-guide-amd64", "20230508+deb12u1", "GPL-2+"},
    {"gnucash-common", "1:4.13-1", "GPL-2+"},
    {"evolution-common", "3.46.4-2+deb12u1", "LGPL-2 or LGPL-3"},
    {"kalzium-data", "4:22.12.3-1", "GPL-2+"},
    {"libgtk-3-common", "3.24.38-2~deb12u3", "LGPL-2+"},
    {"gimp-data", "2.10.34-1+deb12u10", "GPL-3+"},
    // Programs.
    {"python3-attr", "22.2.0-1", "MIT"},
    {"python3-click", "8.1.3-2", "BSD-3-clause"},
    {"python3-jinja2", "3.1.2-1+deb12u3", "BSD-3-clause"},
    {"python3-requests", "2.28.1+dfsg-1", "Apache-2.0"},
    {"libstb-dev", "0.0~git20220908.8b5f1f3+ds-1", "MIT or public domain"},
    {"uthash-dev", "2.3.0-1+b1", "BSD-1-clause"},
    {"libxxhash-dev", "0.8.1-1", "BSD-2-clause"},
    {"libcli11-dev", "2.1.2+ds-1", "BSD-3-clause"},
    {"catch2", "2.13.10-1", "BSL-1.0"},
    {"rapidjson-dev", "1.1.0+dfsg2-7.1", "MIT"},
    {"libutfcpp-dev", "3.2.3-1", "BSL-1.0"},
    {"librust-indexmap-dev", "1.9.2-1", "MIT or Apache-2.0"},
    {"librust-itertools-dev", "0.10.3-1", "MIT or Apache-2.0"},
    {"librust-regex-syntax-dev", "0.6.27-1", "MIT or Apache-2.0"},
    {"golang-github-google-btree-dev", "1.0.0-1", "Apache-2.0"},
    {"golang-github-gorilla-mux-dev", "1.8.0-1", "BSD-3-clause"},
    {"golang-github-spf13-cobra-dev", "1.6.1-1", "Apache-2.0"},
    {"node-lodash", "4.17.21+dfsg+~cs8.31.198.20210220-9+deb12u1", "MIT"},
    {"node-express", "4.18.2+~4.17.14-1", "MIT"},
    {"node-commander", "9.4.1-1", "MIT"},
    {"node-immutable", "4.1.0-3", "MIT"},
    {"libmojolicious-perl", "9.31+dfsg-1", "Artistic-2.0"},
    {"libmoo-perl", "2.005005-1", "Artistic or GPL-1+"},
    {"bats", "1.8.2-1", "MIT"},
    {"shunit2", "2.1.8-3", "Apache-2.0"},
    {"postgresql-15-partman", "4.7.2-1", "PostgreSQL"},
    {"postgresql-15-pgtap", "1.2.0-3", "PostgreSQL"},
    {"ruby-sinatra", "3.0.5-3+deb12u1", "MIT"},
    {"lua-penlight", "1.13.1-3", "MIT"},
    {"tcllib", "1.21+dfsg-1", "BSD-style (Tcl/Tk)"},
    {"extra-cmake-modules", "5.103.0-1", "BSD-3-clause"},
    {"cl-alexandria", "20211025.gita67c3a6-1", "public domain"},
    {"php-twig", "3.5.1-1+deb12u3", "BSD-3-clause"},
};

constexpr CorpusPart help(std::string_view language, Script script, std::string_view path, int64_t bytes) {
  return {"gnome-user-docs", language, script, ExtractKind::mallard, path, ".page", bytes};
}

constexpr CorpusPart guide(std::string_view language, Script script, std::string_view path, int64_t bytes) {
  return {"installation-guide-amd64", language, script, ExtractKind::html, path, ".html", bytes};
}

constexpr CorpusPart messages(std::string_view package, std::string_view language, Script script,
                              std::string_view path, int64_t bytes) {
  return {package, language, script, ExtractKind::catalog, path, "", bytes};
}

constexpr CorpusPart kNeutral[] = {
    help("en", Script::latin, "usr/share/help/C/gnome-help", 15500),
    help("ca", Script::latin, "usr/share/help/ca/gnome-help", 10000),
    help("cs", Script::latin, "usr/share/help/cs/gnome-help", 10000),
    help("de", Script::latin, "usr/share/help/de/gnome-help", 10000),
    help("es", Script::latin, "usr/share/help/es/gnome-help", 10000),
    help("fr", Script::latin, "usr/share/help/fr/gnome-help", 10000),
    help("hu", Script::latin, "usr/share/help/hu/gnome-help", 10000),
    help("id", Script::latin, "usr/share/help/id/gnome-help", 10000),
    help("it", Script::latin, "usr/share/help/it/gnome-help", 10000),
    help("pl", Script::latin, "usr/share/help/pl/gnome-help", 10000),
    help("pt_BR", Script::latin, "usr/share/help/pt_BR/gnome-help", 10000),
    help("sv", Script::latin, "usr/share/help/sv/gnome-help", 10000),
    help("hr", Script::latin, "usr/share/help/hr/gnome-help", 10000),
    help("vi", Script::latin, "usr/share/help/vi/gnome-help", 10000),
    guide("en", Script::latin, "usr/share/doc/installation-guide-amd64/en", 15500),
    guide("de", Script::latin, "usr/share/doc/installation-guide-amd64/de", 6500),
    guide("fr", Script::latin, "usr/share/doc/installation-guide-amd64/fr", 6500),
    guide("es", Script::latin, "usr/share/doc/installation-guide-amd64/es", 6500),
    guide("it", Script::latin, "usr/share/doc/installation-guide-amd64/it", 6500),
    guide("nl", Script::latin, "usr/share/doc/installation-guide-amd64/nl", 6500),
    help("ru", Script::cyrillic, "usr/share/help/ru/gnome-help", 12000),
    guide("ru", Script::cyrillic, "usr/share/doc/installation-guide-amd64/ru", 8000),
    help("uk", Script::cyrillic, "usr/share/help/uk/gnome-help", 12000),
    help("sr", Script::cyrillic, "usr/share/help/sr/gnome-help", 9000),
    help("el", Script::greek, "usr/share/help/el/gnome-help", 12000),
    help("zh_CN", Script::han, "usr/share/help/zh_CN/gnome-help", 9000),
    guide("zh_CN", Script::han, "usr/share/doc/installation-guide-amd64/zh_CN", 9000),
    help("ja", Script::kana, "usr/share/help/ja/gnome-help", 9000),
    guide("ja", Script::kana, "usr/share/doc/installation-guide-amd64/ja", 9000),
    help("ko", Script::hangul, "usr/share/help/ko/gnome-help", 8000),
    guide("ko", Script::hangul, "usr/share/doc/installation-guide-amd64/ko", 6000),
    messages("gnucash-common", "ar", Script::arabic, "usr/share/locale/ar/LC_MESSAGES/gnucash.mo", 9000),
    help("fa", Script::arabic, "usr/share/help/fa/gnome-help", 6000),
    messages("gnucash-common", "he", Script::hebrew, "usr/share/locale/he/LC_MESSAGES/gnucash.mo", 9000),
    messages("gnucash-common", "hi", Script::devanagari, "usr/share/locale/hi/LC_MESSAGES/gnucash.mo", 9000),
    help("mr", Script::devanagari, "usr/share/help/mr/gnome-help", 6000),
    messages("evolution-common", "bn", Script::bengali, "usr/share/locale/bn/LC_MESSAGES/evolution.mo", 8000),
    help("gu", Script::gujarati, "usr/share/help/gu/gnome-help", 6000),
    help("ta", Script::tamil, "usr/share/help/ta/gnome-help", 9000),
    help("te", Script::telugu, "usr/share/help/te/gnome-help", 6000),
    messages("gnucash-common", "kn", Script::kannada, "usr/share/locale/kn/LC_MESSAGES/gnucash.mo", 6000),
    messages("evolution-common", "th", Script::thai, "usr/share/locale/th/LC_MESSAGES/evolution.mo", 10000),
    messages("kalzium-data", "km", Script::khmer, "usr/share/locale/km/LC_MESSAGES/kalzium.mo", 5000),
    messages("gimp-data", "my", Script::myanmar, "usr/share/locale/my/LC_MESSAGES/gimp20.mo", 5000),
    messages("kalzium-data", "ka", Script::georgian, "usr/share/locale/ka/LC_MESSAGES/kalzium.mo", 9000),
    messages("libgtk-3-common", "hy", Script::armenian, "usr/share/locale/hy/LC_MESSAGES/gtk30-properties.mo",
             7000),
};

constexpr CorpusPart program(std::string_view package, std::string_view language, std::string_view path,
                             std::string_view suffix, int64_t bytes) {
  return {package, language, Script::latin, ExtractKind::source, path, suffix, bytes};
}

constexpr CorpusPart kCode[] = {
    program("python3-attr", "Python", "usr/lib/python3/dist-packages/attr", ".py", 11000),
    program("python3-click", "Python", "usr/lib/python3/dist-packages/click", ".py", 12500),
    program("python3-jinja2", "Python", "usr/lib/python3/dist-packages/jinja2", ".py", 12500),
    program("python3-requests", "Python", "usr/lib/python3/dist-packages/requests", ".py", 11000),
    program("libstb-dev", "C", "usr/include/stb", ".h", 19000),
    program("uthash-dev", "C", "usr/include", "/utarray.h", 4500),
    program("uthash-dev", "C", "usr/include", "/uthash.h", 6500),
    program("uthash-dev", "C", "usr/include", "/utlist.h", 4500),
    program("libxxhash-dev", "C", "usr/include/xxhash.h", "", 9500),
    program("libcli11-dev", "C++", "usr/include/CLI", ".hpp", 14000),
    program("catch2", "C++", "usr/include/catch2", ".hpp", 8000),
    program("rapidjson-dev", "C++", "usr/include/rapidjson", ".h", 14000),
    program("libutfcpp-dev", "C++", "usr/include/utf8cpp", ".h", 6500),
    program("librust-indexmap-dev", "Rust", "usr/share/cargo/registry/indexmap-1.9.2", ".rs", 11000),
    program("librust-itertools-dev", "Rust", "usr/share/cargo/registry/itertools-0.10.3", ".rs", 12500),
    program("librust-regex-syntax-dev", "Rust", "usr/share/cargo/registry/regex-syntax-0.6.27", ".rs", 12500),
    program("golang-github-google-btree-dev", "Go", "usr/share/gocode/src/github.com/google/btree", ".go",
            6500),
    program("golang-github-gorilla-mux-dev", "Go", "usr/share/gocode/src/github.com/gorilla/mux", ".go",
            11000),
    program("golang-github-spf13-cobra-dev", "Go", "usr/share/gocode/src/github.com/spf13/cobra", ".go",
            14000),
    program("node-lodash", "JavaScript", "usr/share/nodejs/lodash", ".js", 9500),
    program("node-express", "JavaScript", "usr/share/nodejs/express/lib", ".js", 11000),
    program("node-commander", "JavaScript", "usr/share/nodejs/commander/lib", ".js", 11000),
    program("node-immutable", "TypeScript", "usr/share/nodejs/immutable/dist", ".d.ts", 6500),
    program("libmojolicious-perl", "Perl", "usr/share/perl5/Mojo", ".pm", 12500),
    program("libmoo-perl", "Perl", "usr/share/perl5/Moo", ".pm", 8000),
    program("bats", "shell", "usr/lib/bats-core", ".bash", 6500),
    program("bats", "shell", "usr/libexec/bats-core", "/bats-exec-suite", 3000),
    program("bats", "shell", "usr/libexec/bats-core", "/bats-exec-file", 3000),
    program("shunit2", "shell", "usr/share/shunit2", "shunit2", 6500),
    program("postgresql-15-partman", "SQL", "usr/share/postgresql/15/extension", "/pg_partman--4.7.2.sql",
            9500),
    program("postgresql-15-pgtap", "SQL", "usr/share/postgresql/15/extension", "/pgtap.sql", 8000),
    program("ruby-sinatra", "Ruby", "usr/share/rubygems-integration/all/gems/sinatra-3.0.5/lib", ".rb", 9500),
    program("lua-penlight", "Lua", "usr/share/lua/5.1/pl", ".lua", 9500),
    program("tcllib", "Tcl", "usr/share/tcltk/tcllib1.21/struct", ".tcl", 8000),
    program("extra-cmake-modules", "CMake", "usr/share/ECM/modules", ".cmake", 6500),
    program("cl-alexandria", "Lisp", "usr/share/common-lisp/source/alexandria", ".lisp", 8000),
    program("php-twig", "PHP", "usr/share/php/Twig", ".php", 9500),
};

struct RecordedText {
  CorpusKind kind;
  std::string_view sha256;
};

struct RecordedPackage {
  CorpusKind kind;
  std::string_view package, sha256;
};

// clang-format off
#include "kl/corpus_recipe_hashes.inc"

// clang-format on

struct ScriptRange {
  char32_t first, last;
  Script script;
};

// Blocks of Unicode; letters outside them are rare in the sources.
constexpr ScriptRange kRanges[] = {
    {0x41, 0x5A, Script::latin},       {0x61, 0x7A, Script::latin},
    {0xC0, 0xD6, Script::latin},       {0xD8, 0xF6, Script::latin},
    {0xF8, 0x24F, Script::latin},      {0x370, 0x3FF, Script::greek},
    {0x400, 0x52F, Script::cyrillic},  {0x531, 0x58F, Script::armenian},
    {0x591, 0x5FF, Script::hebrew},    {0x600, 0x6FF, Script::arabic},
    {0x750, 0x77F, Script::arabic},    {0x900, 0x97F, Script::devanagari},
    {0x980, 0x9FF, Script::bengali},   {0xA80, 0xAFF, Script::gujarati},
    {0xB80, 0xBFF, Script::tamil},     {0xC00, 0xC7F, Script::telugu},
    {0xC80, 0xCFF, Script::kannada},   {0xE00, 0xE7F, Script::thai},
    {0x1000, 0x109F, Script::myanmar}, {0x10A0, 0x10FF, Script::georgian},
    {0x1780, 0x17FF, Script::khmer},   {0x1C90, 0x1CBF, Script::georgian},
    {0x1E00, 0x1EFF, Script::latin},   {0x1F00, 0x1FFF, Script::greek},
    {0x3041, 0x30FF, Script::kana},    {0x3400, 0x4DBF, Script::han},
    {0x4E00, 0x9FFF, Script::han},     {0xAC00, 0xD7A3, Script::hangul},
    {0xFB1D, 0xFB4F, Script::hebrew},  {0xFB50, 0xFDFF, Script::arabic},
    {0xFE70, 0xFEFE, Script::arabic},  {0x20000, 0x2FA1F, Script::han},
};

constexpr std::string_view kScriptNames[] = {"Latin",    "Cyrillic", "Greek",    "Han",        "kana",
                                             "Hangul",   "Arabic",   "Hebrew",   "Devanagari", "Bengali",
                                             "Gujarati", "Tamil",    "Telugu",   "Kannada",    "Thai",
                                             "Khmer",    "Myanmar",  "Georgian", "Armenian",   "other"};
static_assert(std::size(kScriptNames) == kScriptCount);

constexpr std::string_view kKindNames[] = {"neutral", "code", "agentic"};

}  // namespace

std::string_view corpus_kind_name(CorpusKind kind) {
  return kKindNames[static_cast<int>(kind)];
}

std::optional<CorpusKind> corpus_kind_from_name(std::string_view name) {
  for (int k = 0; k < 3; ++k) {
    if (kKindNames[k] == name) return static_cast<CorpusKind>(k);
  }
  return std::nullopt;
}

std::string_view script_name(Script script) {
  return kScriptNames[static_cast<int>(script)];
}

Script script_of(char32_t code_point) {
  const auto* range =
      std::upper_bound(std::begin(kRanges), std::end(kRanges), code_point,
                       [](char32_t value, const ScriptRange& entry) { return value < entry.first; });
  if (range == std::begin(kRanges)) return Script::other;
  --range;
  return code_point <= range->last ? range->script : Script::other;
}

std::span<const CorpusPackage> corpus_packages() {
  return kPackages;
}

const CorpusPackage* find_corpus_package(std::string_view name) {
  const auto* found = std::find_if(std::begin(kPackages), std::end(kPackages),
                                   [&](const CorpusPackage& package) { return package.name == name; });
  return found == std::end(kPackages) ? nullptr : found;
}

std::span<const CorpusPart> corpus_parts(CorpusKind kind) {
  if (kind == CorpusKind::neutral) return kNeutral;
  return kCode;
}

int64_t corpus_default_bytes(CorpusKind kind) {
  if (kind == CorpusKind::agentic) return kAgenticBytes;
  int64_t sum = 0;
  for (const auto& part : corpus_parts(kind)) sum += part.bytes;
  return sum;
}

std::string_view recorded_corpus_sha256(CorpusKind kind) {
  for (const auto& text : kRecordedTexts) {
    if (text.kind == kind) return text.sha256;
  }
  return {};
}

std::string_view recorded_package_sha256(CorpusKind kind, std::string_view package) {
  for (const auto& entry : kRecordedPackages) {
    if (entry.kind == kind && entry.package == package) return entry.sha256;
  }
  return {};
}

}  // namespace rorqual::kl
