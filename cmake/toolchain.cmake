# SPDX-License-Identifier: Apache-2.0
# Compiler cache, linker, hardening and sanitizers: everything that is the same for every target.

find_program(RORQUAL_CCACHE ccache)
if(RORQUAL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RORQUAL_CCACHE})
endif()
find_program(RORQUAL_MOLD mold)
if(RORQUAL_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# One rounding per operation everywhere: results must not depend on how the compiler fuses (docs/numerics.md).
add_compile_options(-ffp-contract=off -ffile-prefix-map=${PROJECT_SOURCE_DIR}=. -fstack-protector-strong)
add_link_options(-Wl,-z,relro,-z,now)

if(RORQUAL_SANITIZE)
  add_compile_options(-fsanitize=${RORQUAL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${RORQUAL_SANITIZE})
endif()
