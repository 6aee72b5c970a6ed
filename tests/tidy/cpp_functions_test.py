#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The function finder of the tidy test on small sources."""

import unittest

from cpp_functions import count_parameters, functions


class Functions(unittest.TestCase):
    def test_finds_free_and_member_functions_with_their_lengths(self):
        source = """namespace a {
int one(int x, std::map<int, int> y) {
  if (x) { return 1; }
  return 2;
}
class B {
 public:
  void two() const {}
};
}  // namespace a
"""
        self.assertEqual(list(functions(source)), [("one", 2, 4, 2), ("two", 8, 1, 0)])

    def test_braces_in_strings_and_comments_do_not_count(self):
        source = 'void f() {\n  const char* s = "}{";  // }\n  char c = \'{\';\n}\n'
        self.assertEqual(list(functions(source)), [("f", 1, 4, 0)])

    def test_initialisers_lambdas_and_control_blocks_are_no_functions(self):
        source = "const int k[] = {1, 2};\nauto g = [](int x) { return x; };\n"
        self.assertNotIn("k", [name for name, *_ in functions(source)])

    def test_counts_parameters_inside_templates_and_defaults_once(self):
        self.assertEqual(count_parameters("void f(std::pair<int, int> a, int b = g(1, 2))"), 2)
        self.assertEqual(count_parameters("int f()"), 0)


if __name__ == "__main__":
    unittest.main()
