# SPDX-License-Identifier: Apache-2.0
# Puts a file into the program: embed_file(TARGET t SYMBOL name FILE path) defines the C symbols
# rorqual_embed_<name> and rorqual_embed_<name>_end (one byte past the end) in read-only memory.

function(embed_file)
  cmake_parse_arguments(A "" "TARGET;SYMBOL;FILE" "" ${ARGN})
  get_filename_component(path ${A_FILE} ABSOLUTE)
  set(asm ${CMAKE_CURRENT_BINARY_DIR}/embed_${A_SYMBOL}.S)
  file(CONFIGURE OUTPUT ${asm} CONTENT [[
    .section .rodata
    .balign 64
    .global rorqual_embed_@A_SYMBOL@
    .global rorqual_embed_@A_SYMBOL@_end
rorqual_embed_@A_SYMBOL@:
    .incbin "@path@"
rorqual_embed_@A_SYMBOL@_end:
    .byte 0
    .section .note.GNU-stack,"",%progbits
]] @ONLY)
  set_source_files_properties(${asm} PROPERTIES OBJECT_DEPENDS ${path})
  target_sources(${A_TARGET} PRIVATE ${asm})
endfunction()
