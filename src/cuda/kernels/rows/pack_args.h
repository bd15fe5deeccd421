/// pack_rows: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::pack_rows {

struct Config {
  tile::Element element = tile::Element::fp16;  ///< of the packed rows
  bool from_float =
      true;  ///< float32 source: scaled, in planes; else 16-bit elements are copied as they are
  int planes = 2;
  bool ragged = false;  ///< packed sequences or pages: Args are RaggedArgs

  bool operator==(const Config&) const = default;
};

/// One tensor to pack.
struct Source {
  tile::View4 from;
  unsigned short* to = nullptr;  ///< (B, H, rows, planes * padded), contiguous
  float* scale = nullptr;        ///< (B, H, blocks of kScaleRows rows), from_float only
  bool vectors = false;          ///< float32 rows are 16-byte aligned with unit stride
  int heads = 1, rows = 0, cols = 0;
  int padded = 0;  ///< columns of a plane, a multiple of 16; those beyond cols become zero
  int blocks = 0;  ///< of kScaleRows rows, of one head
  long long first_block = 0;  ///< of the grid
};

struct Args {
  static constexpr int kMaxSources = 4;
  Source sources[kMaxSources];
  int count = 0;
};

/// What only the device knows of a source's rows. Those of packed sequences go to blocks of
/// kScaleRows rows as tile/sequences.cuh counts them, those of pages beside each other, up to each
/// entry's length.
struct RaggedArgs {
  Args args;
  tile::Sequences sequences[Args::kMaxSources];  ///< without offsets: rows are where Source says
  bool paged[Args::kMaxSources] = {};
  tile::Pages pages;
  const int* key_lengths = nullptr;  ///< (B), of pages
  long long key_lengths_b = 0;
};

inline constexpr int kThreads = 128;

}  // namespace tilewise::pack_rows
