# Flags that all of the project's own units share, and the flags of the instruction-set units.

add_library(tilewise_flags INTERFACE)
target_compile_options(
  tilewise_flags
  INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
            # The public structs are made to be given by designated initialisers, some of them.
            -Wno-missing-field-initializers
            $<$<BOOL:${TILEWISE_WERROR}>:-Werror>
            # g++ 12 sees overlaps and overruns in std::string and std::sort that are not there
            # (GCC PR 105651, 107986); the sanitizer builds look for real ones.
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow>
            # Results do not depend on what a compiler chooses to fuse.
            -ffp-contract=off -ffunction-sections -fdata-sections)

if(TILEWISE_SANITIZE)
  set(sanitizer_flags -fsanitize=${TILEWISE_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  # g++ 12 also takes parts of std::regex for uninitialised then. Files that are one unit may hide
  # each other's names: the release build warns of those of one file.
  target_compile_options(
    tilewise_flags INTERFACE ${sanitizer_flags} -Wno-shadow
                             $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(tilewise_flags INTERFACE ${sanitizer_flags})
  # Some thirty programs of 50 MB and more: binutils' other linker takes a third of the time.
  find_program(TILEWISE_GOLD ld.gold)
  if(TILEWISE_GOLD)
    target_link_options(tilewise_flags INTERFACE -fuse-ld=gold)
  endif()
endif()

# NOTE: an instruction-set unit must not define inline functions that other units define too: the
# linker keeps one copy, perhaps the one that needs AVX-512. tests/install/isa_units_test.py checks.
set(isa_avx2 -mavx2 -mfma -mf16c)
set(isa_avx512 ${isa_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(isa_avx512bf16 ${isa_avx512} -mavx512bf16)
set(isa_amx ${isa_avx512bf16} -mamx-tile -mamx-bf16)

# Gives each source named *_avx2.cpp, *_avx512.cpp, *_avx512bf16.cpp or *_amx.cpp the flags of its
# instruction set.
function(tilewise_isa_flags)
  foreach(isa IN ITEMS avx2 avx512 avx512bf16 amx)
    set(units ${ARGN})
    list(FILTER units INCLUDE REGEX "_${isa}\\.cpp$")
    if(units)
      set_source_files_properties(${units} PROPERTIES COMPILE_OPTIONS
                                                      "${isa_${isa}};-ffp-contract=fast")
    endif()
  endforeach()
endfunction()
