/// The tiles of fwd_sm90 that were found good. See fwd_sm90/README.md.
#pragma once

#include "cuda/kernels/fwd_sm90/tiles.h"

namespace tilewise::cuda::fwd_sm90_tables {

using fwd_sm90::Schedule;
using fwd_sm90::Shape;

/// For a tile of one warpgroup, and those whose rows list different tiles of keys.
inline constexpr Schedule kAlone = {.ping_pong = false, .skip_blocks = false};
/// For 128 x 128 at dims 96 and 128.
inline constexpr Schedule kSquare = {.skip_blocks = false, .lazy_rescale = false};
inline constexpr Schedule kWindow = {.ping_pong = false, .q_by_need = true};
inline constexpr Schedule kListed = {.skip_blocks = false};

constexpr Shape shape(int warpgroups, int block_n, int stages) {
  return {.warpgroups = warpgroups, .block_n = block_n, .stages = stages, .value_stages = stages};
}
/// O is staged in Q's place.
constexpr Shape o_in_q(Shape shape, int held = 1) {
  shape.own_o = false;
  shape.held = held;
  return shape;
}
constexpr Shape fewer_values(Shape shape) {
  --shape.value_stages;
  return shape;
}
constexpr Shape resident(int blocks, Shape shape) {
  shape.resident = blocks;
  return shape;
}
constexpr Shape two_q(Shape shape) {
  shape.q_buffers = 2;
  return shape;
}

// shape, full, masked, schedule.
// The tiles of one warpgroup are for few queries: copying K and V takes all the time then.
inline constexpr FwdSm90Tile kTiles64[] = {
    {two_q(shape(3, 128, 3)),
     {1.2, 1.228},
     {0.9, 1.225},
     {.values_first = true, .halve_cut = true, .chain_tiles = true, .dynamic = true}},
    {shape(1, 128, 4), {2.0, 0.9}, {2.0, 0.9}, kAlone}};
// With dropout two warpgroups are faster, of which one makes bits while the other exponentiates.
inline constexpr FwdSm90Tile kDrops64[] = {
    {two_q(shape(2, 128, 4)),
     {1.2, 0.85},
     {0.9, 0.9},
     {.values_first = true, .chain_tiles = true, .dynamic = true}},
    kTiles64[1]};
// Few tiles: small ones, of which several are on a multiprocessor.
inline constexpr FwdSm90Tile kFew64[] = {
    kTiles64[0],
    kTiles64[1],
    {resident(3, o_in_q(shape(1, 64, 4))), {1.8, 0.75}, {1.8, 0.75}, kAlone}};
inline constexpr FwdSm90Tile kTiles96[] = {
    {shape(3, 96, 2), {2.4, 1.164}, {2.6, 1.147}, {}, true, 1.1},
    {shape(2, 128, 2), {2.0, 1.13}, {1.55, 1.13}, kSquare, true, 1.33},
    {shape(1, 128, 3), {3.0, 1.2}, {3.0, 1.2}, kAlone}};
inline constexpr FwdSm90Tile kTiles128[] = {
    {shape(3, 80, 2), {2.3, 1.182}, {2.3, 1.148}, {}, false},
    {shape(2, 128, 2), {2.1, 1.284}, {1.55, 1.29}, kSquare},
    {shape(3, 64, 4), {1.2, 0.94}, {1.2, 0.94}, kWindow},
    {shape(1, 128, 3), {2.2, 1.25}, {2.2, 1.25}, kAlone}};
// A bias of each query is read for as many keys as its tile has: few keys and many queries take
// less of what the L2 cache gives.
inline constexpr FwdSm90Tile kBiased128[] = {
    {shape(3, 64, 3), {1.2, 0.94}, {1.2, 0.94}, {}}, kTiles128[1], kTiles128[3]};
inline constexpr FwdSm90Tile kTiles192[] = {
    {o_in_q(shape(2, 112, 2)), {4.55, 1.626}, {4.75, 1.537}, {}},
    {shape(1, 64, 3), {4.0, 1.2}, {4.0, 1.2}, kAlone}};
inline constexpr FwdSm90Tile kTiles192Values128[] = {
    {shape(2, 112, 2), {3.7, 1.356}, {3.9, 1.29}, {}},
    {shape(1, 64, 3), {4.0, 1.0}, {4.0, 1.0}, kAlone}};
inline constexpr FwdSm90Tile kTiles256[] = {
    {o_in_q(shape(2, 80, 2)), {4.6, 1.563}, {4.3, 1.505}, {}},
    {fewer_values(o_in_q(shape(2, 64, 3))), {4.3, 1.16}, {4.3, 1.16}, kWindow},
    {o_in_q(shape(1, 64, 3)), {4.0, 1.5}, {4.0, 1.5}, kAlone}};

// With a block list: a row block of two warpgroups is one of the list's of 128 queries or a part of
// it. Keys by 128, by 64 where blocks of keys are smaller or dims larger.
inline constexpr Schedule kApart128 = {
    .ping_pong = false, .skip_blocks = false, .lazy_rescale = false};
inline constexpr FwdSm90Tile kLists64[] = {{shape(2, 128, 4), {1.7, 0.962}, {1.7, 1.0}, kListed},
                                           {shape(2, 64, 6), {2.0, 0.5}, {2.0, 0.55}, kListed}};
inline constexpr FwdSm90Tile kLists128[] = {{shape(2, 128, 2), {2.8, 1.297}, {2.8, 1.35}, kSquare},
                                            {shape(2, 64, 4), {2.1, 0.7}, {2.1, 0.75}, kSquare}};
// Blocks of 64 queries: a tile of its own for each, and several blocks of the kernel on a
// multiprocessor, one of which computes while another waits.
inline constexpr FwdSm90Tile kListsAlone64 = {
    resident(3, o_in_q(shape(1, 64, 4))), {2.7, 0.71}, {2.7, 0.75}, kAlone};
inline constexpr FwdSm90Tile kListsAlone128 = {
    resident(2, o_in_q(shape(1, 64, 3))), {3.9, 0.752}, {3.9, 0.8}, kAlone};
// Smaller blocks: rows of 64 list different tiles of keys. Nobody takes turns, many stages let one
// warpgroup go ahead of the other. Where scores are modified there are no registers for two row
// blocks of a warpgroup, nor for two blocks of the kernel.
inline constexpr FwdSm90Tile kListsApart64[] = {
    {resident(2, o_in_q(shape(2, 64, 6))), {10.0, 1.07}, {10.0, 1.1}, kAlone},
    {shape(2, 64, 8), {2.0, 0.95}, {2.0, 1.0}, kAlone}};
inline constexpr FwdSm90Tile kListsApart128[] = {
    {o_in_q(shape(4, 64, 5), 2), {4.0, 2.2}, {4.0, 2.3}, kAlone},
    {o_in_q(shape(2, 64, 6)), {2.1, 1.33}, {2.1, 1.38}, kApart128}};
inline constexpr FwdSm90Tile kLists256[] = {
    {fewer_values(o_in_q(shape(2, 64, 3))), {4.3, 1.3}, {4.3, 1.4}, kListed},
    {fewer_values(o_in_q(shape(2, 64, 3))), {4.3, 1.3}, {4.3, 1.4}, kAlone}};

// Walks what a bool mask leaves, in tiles of any size. The times are older than those of lists.
constexpr FwdSm90Tile mapped(FwdSm90Tile tile) {
  tile.maps = true;
  return tile;
}
constexpr FwdSm90Tile mapped(FwdSm90Tile tile, FwdSm90Time full, FwdSm90Time masked) {
  tile.full = full;
  tile.masked = masked;
  return mapped(tile);
}
inline constexpr FwdSm90Tile kMasked64[] = {mapped({shape(3, 128, 3),
                                                    {1.2, 1.228},
                                                    {0.9, 1.225},
                                                    {.skip_blocks = false, .values_first = true}}),
                                            mapped(kLists64[0], {2.0, 0.85}, {2.0, 0.9})};
inline constexpr FwdSm90Tile kMasked128[] = {mapped(kLists128[0], {2.1, 1.284}, {2.1, 1.35})};
inline constexpr FwdSm90Tile kMasked256[] = {mapped(kLists256[0])};

}  // namespace tilewise::cuda::fwd_sm90_tables
