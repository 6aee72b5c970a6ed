# SPDX-License-Identifier: Apache-2.0
"""Finds function bodies in C++ sources by brace matching: enough for length and parameter rules, no compiler needed."""

import re

CONTROL = re.compile(r"^(if|for|while|switch|catch|do|else|return|namespace|class|struct|enum|union|extern)\b")
PREFIX = re.compile(r"^(?:template\s*<[^{}]*?>\s*(?:requires[^{}()]*)?|inline\s+|static\s+|constexpr\s+|\[\[[^\]]*\]\]\s*)+", re.S)
LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)


def strip_literals(text: str) -> str:
    """Comments, strings and character literals become blanks of the same shape; preprocessor lines too."""
    text = LITERAL.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: re.sub(r"[^\n]", " ", match.group()), text, flags=re.M)


def count_parameters(signature: str) -> int:
    """Parameters in the first parenthesis group of a function's signature that follows its name."""
    start = signature.find("(")
    depth, angle, count, begin = 0, 0, 0, start + 1
    for i in range(start, len(signature)):
        c = signature[i]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                inner = signature[start + 1:i].strip()
                return count + 1 if inner and inner != "void" else 0
        elif c == "<":
            angle += 1
        elif c == ">" and signature[i - 1] != "-":
            angle -= 1
        elif c == "," and depth == 1 and angle == 0:
            count += 1
    return count + (1 if begin < len(signature) else 0)


def functions(source: str):
    """Yields (name, first line, number of lines, parameters) of each function defined at namespace or class scope."""
    text = strip_literals(source)
    stack = []  # per open brace: ("scope" | "function" | "other", start offset, signature)
    since = 0   # where the current declaration began
    for i, c in enumerate(text):
        if c == "{":
            signature = text[since:i].strip()
            core = PREFIX.sub("", signature)
            core = re.sub(r"\b(public|private|protected)\s*:\s*", "", core).strip()
            inside = any(kind == "function" for kind, _, _ in stack)
            is_scope = re.match(r"(namespace|extern|class|struct|union|enum)\b", core) is not None and "(" not in \
                re.sub(r"alignas\s*\([^)]*\)", "", core)
            if is_scope or not core:
                kind = "scope" if is_scope else "other"
            elif not inside and "(" in core and not CONTROL.match(core) and not re.search(r"=\s*$", core):
                kind = "function"
            else:
                kind = "other"
            begin = since + re.match(r"(?:\s*(?:public|private|protected)\s*:)*\s*", text[since:i]).end()
            stack.append((kind, begin, core))
            since = i + 1
        elif c == "}":
            if stack:
                kind, begin, core = stack.pop()
                if kind == "function":
                    name = re.search(r"([~\w:]+|operator\S+)\s*\(", core)
                    first = text.count("\n", 0, begin) + 1
                    last = text.count("\n", 0, i) + 1
                    yield (name.group(1) if name else "?", first, last - first + 1, count_parameters(core))
            since = i + 1
        elif c == ";":
            since = i + 1
