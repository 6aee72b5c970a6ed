// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <fmt/format.h>

#include <cstddef>
#include <span>

#include "base/file.h"
#include "base/sha256.h"
#include "report/characters.h"
#include "report/svg.h"

namespace rorqual::report {
namespace {

constexpr std::string_view kCss = R"(
:root{color-scheme:light dark;--page:#fff;--text:#1b1b1f;--soft:#5d5d68;--rule:#dcdce2;--box:#f5f5f8;
--link:#0055aa;--good:#e3f4e8;--good-edge:#1a7f4b;--bad:#fdeaea;--bad-edge:#b3261e;--hit:#ffe58a;--hit-text:#1b1b1f}
@media (prefers-color-scheme:dark){:root{--page:#15161a;--text:#e6e6ec;--soft:#a3a3ae;--rule:#34353d;
--box:#1e2026;--link:#7ab8ff;--good:#16301f;--good-edge:#3fbf7f;--bad:#3a1a1a;--bad-edge:#ff6b5e;
--hit:#7a5c00;--hit-text:#fff}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:62rem;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0 .6rem}
h2{font-size:1.25rem;margin:2.4rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--rule)}
h3{font-size:1.05rem;margin:1.6rem 0 .4rem}
p{margin:.5rem 0;max-width:48rem}a{color:var(--link)}
.head{background:var(--box);border:1px solid var(--rule);border-radius:6px;padding:.4rem 1rem .8rem;margin:1rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0}
dt{color:var(--soft)}dd{margin:0;min-width:0;overflow-wrap:anywhere}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;padding:0;margin:.8rem 0}
.notice{border-left:4px solid var(--soft);background:var(--box);padding:.5rem .8rem;margin:.8rem 0;border-radius:0 4px 4px 0}
.notice.good{border-color:var(--good-edge);background:var(--good)}
.notice.bad{border-color:var(--bad-edge);background:var(--bad)}
.scroll{overflow-x:auto;margin:.6rem 0}figure{margin:1rem 0}figure .plot{overflow-x:auto}
figure svg{min-width:32rem}figcaption,caption{color:var(--soft);font-size:.88rem;text-align:left;padding:.2rem 0}
table{border-collapse:collapse;font-size:.92rem}
.data th,.data td{padding:.28rem .6rem;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
.data th{border-bottom:2px solid var(--rule)}
.data .number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.data tbody tr:hover{background:var(--box)}
th button{all:unset;cursor:pointer}th button:focus-visible{outline:2px solid var(--link);outline-offset:2px}
th[aria-sort=ascending] button::after{content:" \2191"}th[aria-sort=descending] button::after{content:" \2193"}
.sign{color:var(--soft);font-size:.85em}
footer{margin-top:3rem;padding-top:.6rem;border-top:1px solid var(--rule);color:var(--soft);font-size:.85rem}
@media (max-width:40rem){body{padding:.8rem;font-size:14px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}}
@media print{details::details-content{content-visibility:visible}:root{--page:#fff;--text:#000;--soft:#444;--rule:#bbb;--box:#fff;--link:#000;--good:#fff;--bad:#fff;
--hit:#ddd;--hit-text:#000}
body{max-width:none;padding:0;font-size:10pt}nav{display:none}.scroll,figure .plot{overflow:visible}
figure,tr,article{break-inside:avoid}h2,h3{break-after:avoid}figure svg{min-width:0}}
)";

// Column headers become buttons; numbers sort by value, the rest as text; equal rows keep their order.
constexpr std::string_view kScript = R"(
for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  if (!table.tHead || !body || body.rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "sort";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = row => row.cells[column] ? row.cells[column].textContent : "";
      const number = row => parseFloat(text(row).replace(/,/g, "").replace(/^[^0-9.+-]+/, ""));
      const numeric = head.classList.contains("number");
      const order = (a, b) => {
        if (!numeric) return text(a) < text(b) ? -1 : text(a) > text(b) ? 1 : 0;
        const x = number(a), y = number(b);
        return (isNaN(x) ? 1e308 : x) - (isNaN(y) ? 1e308 : y);
      };
      const rows = [...body.rows].sort((a, b) => down ? order(b, a) : order(a, b));
      body.append(...rows);
    });
  });
}
)";

std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (i + j < bytes.size() ? bytes[i + j] : 0U);
    for (size_t j = 0; j < 4; ++j) out += i + j > bytes.size() ? '=' : kAlphabet[group >> (18 - 6 * j) & 63];
  }
  return out;
}

uint8_t hex_value(char digit) {
  return static_cast<uint8_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

/// Only the one script above may run and nothing may be loaded, whatever a token's text holds.
std::string policy() {
  std::vector<uint8_t> digest;
  const auto hex = sha256_hex(std::as_bytes(std::span(kScript)));
  for (size_t i = 0; i < hex.size(); i += 2)
    digest.push_back(static_cast<uint8_t>(hex_value(hex[i]) * 16 + hex_value(hex[i + 1])));
  return fmt::format(
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action "
      "'none'",
      base64(digest));
}

/// JSON inside a script element: no character that HTML could read as markup.
std::string json_for_html(std::string_view json) {
  std::string out;
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else if (c == '>') {
      out += "\\u003e";
    } else if (c == '&') {
      out += "\\u0026";
    } else {
      out += c;
    }
  }
  return out;
}

std::string head_block(const PageHead& head) {
  std::string out = fmt::format("<header>\n<h1>{}</h1>\n<p>{}</p>\n<div class=\"head\">\n<dl>\n",
                                escaped(head.title), escaped(head.lead));
  for (const auto& [name, value] : head.facts)
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value));
  out += "</dl>\n";
  if (!head.limits.empty()) {
    out += "<strong>What these numbers do not show</strong>\n<ul>\n";
    for (const auto& limit : head.limits) out += fmt::format("<li>{}</li>\n", escaped(limit));
    out += "</ul>\n";
  }
  return out + "</div>\n</header>\n";
}

}  // namespace

void Page::section(std::string_view title) {
  section_titles_.emplace_back(title);
  body_ += fmt::format("<h2 id=\"s{}\">{}</h2>\n", section_titles_.size(), escaped(title));
}

void Page::subsection(std::string_view title) {
  body_ += fmt::format("<h3>{}</h3>\n", escaped(title));
}

void Page::paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", escaped(text));
}

void Page::notice(Tone tone, std::string_view text) {
  const char* name = tone == Tone::good ? " good" : tone == Tone::bad ? " bad" : "";
  body_ += fmt::format("<p class=\"notice{}\">{}</p>\n", name, escaped(text));
}

void Page::table(const Table& table, std::string_view caption) {
  auto html = to_html(table);
  if (!caption.empty()) {
    html.insert(html.find('>') + 1, fmt::format("<caption>{}</caption>", escaped(caption)));
  }
  body_ += fmt::format("<div class=\"scroll\">{}</div>\n", html);
}

void Page::figure(const std::string& svg, std::string_view caption) {
  body_ += fmt::format("<figure><div class=\"plot\">{}</div>", svg);
  if (!caption.empty()) body_ += fmt::format("<figcaption>{}</figcaption>", escaped(caption));
  body_ += "</figure>\n";
}

std::string Page::html() const {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>",
      policy(), escaped(head_.title));
  out += kCss;
  out += chart_css();
  out += css_;
  out += "</style>\n</head>\n<body>\n" + head_block(head_);
  if (section_titles_.size() > 1) {
    out += "<nav aria-label=\"Contents\"><ul>\n";
    for (size_t i = 0; i < section_titles_.size(); ++i)
      out += fmt::format("<li><a href=\"#s{}\">{}</a></li>\n", i + 1, escaped(section_titles_[i]));
    out += "</ul></nav>\n";
  }
  out += "<main>\n" + body_ + "</main>\n";
  if (!json_.empty()) {
    out += "<footer>The figures of this page are also in it as JSON (element \"data\").</footer>\n";
    out += "<script type=\"application/json\" id=\"data\">" + json_for_html(json_) + "</script>\n";
  }
  out += "<script>" + std::string(kScript) + "</script>\n";
  return out + "</body>\n</html>\n";
}

Status write_page(const std::string& path, const Page& page) {
  return write_text_file(path, page.html());
}

}  // namespace rorqual::report
