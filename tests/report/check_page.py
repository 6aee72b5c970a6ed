# SPDX-License-Identifier: Apache-2.0
"""Checks a report page: well-formed, self-contained, with the sections and the worst positions it must have.

usage: check_page.py PAGE.html --sections Overview,neutral --worst 50 --figures 4 [--schema rorqual.kl.report/1]
"""
import argparse
import json
import sys
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "div", "dl", "dt", "dd",
    "strong", "ul", "li", "nav", "a", "main", "footer", "script", "table", "caption", "thead", "tbody", "tr", "th",
    "td", "figure", "figcaption", "span", "code", "bdi", "article", "details", "summary", "b", "mark",
    "svg", "desc", "text", "path", "rect", "circle",
}
LOADING = {"src", "srcset", "action", "data", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.faults = [], []
        self.sections, self.figures, self.worst, self.top_rows = [], 0, 0, []
        self.scripts, self.json, self.alternatives = 0, None, 0
        self.text = ""

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if tag not in TAGS:
            self.faults.append(f"unexpected element <{tag}> at {self.getpos()}")
        for name in names:
            if name.startswith("on") or name in LOADING:
                self.faults.append(f"attribute {name} of <{tag}> at {self.getpos()}")
        if tag == "a" and not names.get("href", "").startswith("#"):
            self.faults.append(f"link leaves the page at {self.getpos()}")
        if tag in ("h2", "title", "desc", "script"):
            self.text = ""
        if tag == "h2":
            self.sections.append("")
        if tag == "figure":
            self.figures += 1
        if tag == "article" and names.get("class") == "worst":
            self.worst += 1
        if tag == "table" and names.get("class") == "tops":
            self.top_rows.append(-1)  # the head row does not count
        if tag == "tr" and self.inside("article"):
            self.top_rows[-1] += 1
        if tag == "svg" and names.get("role") != "img":
            self.faults.append("a plot without role=img")
        if tag == "script":
            self.scripts += 1
            self.script_type = names.get("type")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def inside(self, tag):
        return tag in self.open

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes <{self.open[-1] if self.open else ''}> at {self.getpos()}")
            return
        self.open.pop()
        if tag == "h2":
            self.sections[-1] = self.text
        if tag == "title" and self.inside("svg") and self.text.strip():
            self.alternatives += 1
        if tag == "desc" and not self.text.strip():
            self.faults.append(f"a plot without description at {self.getpos()}")
        if tag == "script" and self.script_type == "application/json":
            self.json = json.loads(self.text)

    def handle_data(self, data):
        self.text += data
        if not self.inside("script") and not self.inside("style"):
            bad = [c for c in data if (ord(c) < 32 and c != "\n") or c == "\ufffd" or "\u202a" <= c <= "\u202e"]
            if bad:
                self.faults.append(f"characters {bad} at {self.getpos()}")

    def handle_comment(self, data):
        self.faults.append(f"comment at {self.getpos()}")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("page")
    options.add_argument("--sections", required=True)
    options.add_argument("--worst", type=int, required=True)
    options.add_argument("--figures", type=int, required=True)
    options.add_argument("--schema", default="rorqual.kl.report/1")
    options = options.parse_args()
    with open(options.page, encoding="utf-8", newline="") as file:  # not UTF-8: an error
        text = file.read()
    page = Page()
    page.feed(text)
    page.close()
    faults = page.faults
    if page.open:
        faults.append(f"not closed: {page.open}")

    def expect(what, got, wanted):
        if got != wanted:
            faults.append(f"{what}: got {got}, expected {wanted}")

    expect("sections", page.sections, options.sections.split(","))
    expect("worst positions", page.worst, options.worst)
    expect("tables of best tokens", len(page.top_rows), options.worst)
    expect("rows of each", set(page.top_rows) <= {10}, True)
    expect("figures", page.figures, options.figures)
    expect("titles of plots", page.alternatives, options.figures)
    expect("scripts", page.scripts, 2)
    expect("schema of the data", (page.json or {}).get("schema"), options.schema)
    expect("policy", "default-src 'none'" in text, True)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
