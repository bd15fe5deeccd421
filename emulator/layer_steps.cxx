/// layer_steps on the emulator against the CPU's verbs: padded batches, masks that are joined, and
/// dropout and noise that read a trainer's counter.
#include "layer_steps_check.h"

namespace {

std::vector<int> lengths = {70, 0, 19};

void check_pools() {
  const asam::TokenShape s{3, 70, 5};
  const steps::Tokens shape{3, 70, 5, lengths.data()};
  const std::int64_t features = s.batch * asam::kWindowFeatures * s.dim;
  const std::vector<float> x = draw(s.elems()), df = draw(features);
  std::vector<float> expected = nans(features), ours = expected;
  std::vector<float> dx = draw(s.elems()), our_dx = dx, means = nans(3 * 3 * 5);
  std::vector<int> highest(45, -1);
  cpu().pool_windows(x.data(), lengths.data(), expected.data(), s);
  cpu().pool_windows_backward(x.data(), lengths.data(), expected.data(), df.data(), dx.data(), s);
  steps::WindowArgs args{.shape = shape,
                         .x = x.data(),
                         .features = ours.data(),
                         .means = means.data(),
                         .highest = highest.data()};
  run(s.batch, [&] { steps::pool_windows<kConfig>(args); });
  args.d_features = df.data();
  args.dx = our_dx.data();
  run(s.batch * 2, [&] { steps::pool_windows_backward<kConfig>(args); });
  compare("pool_windows", ours, expected);
  compare("pool_windows_backward", our_dx, dx);

  for (const bool last : {false, true}) {
    const asam::Readout readout = last ? asam::Readout::last : asam::Readout::mean;
    std::vector<float> y = nans(s.batch * s.dim), our_y = y;
    std::vector<float> d = nans(s.elems()), our_d = d;
    cpu().read_out(x.data(), lengths.data(), y.data(), readout, s);
    cpu().read_out_backward(y.data(), lengths.data(), d.data(), readout, s);
    steps::ReadArgs read{.shape = shape, .last = last, .from = x.data(), .to = our_y.data()};
    run(s.batch, [&] { steps::read_out<kConfig>(read); });
    read = {.shape = shape, .last = last, .from = y.data(), .to = our_d.data()};
    run(2, [&] { steps::read_out_backward<kConfig>(read); });
    compare(last ? "read_out of the last" : "read_out of the mean", our_y, y);
    compare("read_out_backward", our_d, d);
  }
}

/// The bias and what follows it of a Linear are those of its own product.
struct ProductCase {
  asam::LinearShape s;
  bool follows;  ///< bias, GELU, residual, and z is kept
};

/// A Linear of ragged shapes, one to three slices of k; the product beside float64's.
void check_products() {
  for (const ProductCase& c : {ProductCase{{70, 68, 65}, true}, ProductCase{{3, 36, 10}, false},
                               ProductCase{{35, 140, 70}, true}}) {
    const asam::LinearShape s = c.s;
    const asam::Shape out{s.rows, s.out};
    const std::vector<float> x = draw(s.rows * s.in), w = draw(s.out * s.in);
    const std::vector<float> bias = draw(s.out), residual = draw(s.rows * s.out);
    const std::vector<double> x64(x.begin(), x.end()), w64(w.begin(), w.end());
    const std::vector<double> bias64(bias.begin(), bias.end());
    std::vector<double> truth(static_cast<std::size_t>(s.rows * s.out));
    asam::CpuOps<double> exact(default_executor());
    exact.linear(x64.data(), w64.data(), truth.data(),
                 {.bias = c.follows ? bias64.data() : nullptr}, s);
    std::vector<float> y = nans(s.rows * s.out), z = y, expected = y;
    const steps::ProductArgs args{
        .x = x.data(),
        .w = w.data(),
        .bias = c.follows ? bias.data() : nullptr,
        .residual = c.follows ? residual.data() : nullptr,
        .z = c.follows ? z.data() : nullptr,
        .y = y.data(),
        .f = c.follows ? steps::Activation::gelu : steps::Activation::none,
        .rows = s.rows,
        .in = static_cast<int>(s.in),
        .out = static_cast<int>(s.out)};
    for (const int rows : {64, 32}) {
      const std::int64_t blocks = (s.rows + rows - 1) / rows * ((s.out + 63) / 64);
      std::fill(y.begin(), y.end(), NAN);
      std::fill(z.begin(), z.end(), NAN);
      emulator::shared_base = steps::product_memory;
      run(blocks, [&] {
        rows == 64 ? steps::product_64<kConfig>(args) : steps::product_32<kConfig>(args);
      });
      compare("product", c.follows ? z : y, std::vector<float>(truth.begin(), truth.end()), 3e-6);
      if (!c.follows) continue;
      cpu().activate(z.data(), nullptr, expected.data(), asam::Activation::gelu, out);
      cpu().add(residual.data(), expected.data(), s.rows * s.out);
      compare("what follows it", y, expected, 1e-6);
    }
  }
}

/// Rows of very large and very small elements, and one that is not finite: it alone is lost.
void check_product_of_extremes() {
  constexpr std::int64_t kRows = 6, kIn = 72, kOut = 5;
  std::vector<float> x = draw(kRows * kIn), w = draw(kOut * kIn);
  const float scales[kRows] = {1e30F, 1e-30F, 1.0F, 3e37F, 1e-37F, 1.0F};
  for (std::int64_t i = 0; i < kRows * kIn; ++i) x[i] *= scales[i / kIn];
  for (std::int64_t i = 0; i < kIn; ++i) w[i] *= 1e-25F;
  x[5 * kIn + 40] = INFINITY;
  std::vector<float> y = nans(kRows * kOut);
  const steps::ProductArgs args{
      .x = x.data(), .w = w.data(), .y = y.data(), .rows = kRows, .in = kIn, .out = kOut};
  emulator::shared_base = steps::product_memory;
  run(1, [&] { steps::product_64<kConfig>(args); });
  std::vector<float> ours, expected;
  for (std::int64_t i = 0; i < kRows * kOut; ++i) {
    double truth = 0.0, size = 1e-45;
    for (std::int64_t k = 0; k < kIn; ++k) {
      const double term =
          static_cast<double>(x[i / kOut * kIn + k]) * static_cast<double>(w[i % kOut * kIn + k]);
      truth += term;
      size += std::abs(term);
    }
    const bool finite = i / kOut != 5;
    ours.push_back(finite ? static_cast<float>((y[i] - truth) / size) : std::isfinite(y[i]));
    expected.push_back(0.0F);
  }
  compare("product of extremes", ours, expected, 1e-6);
}

void check_norm(asam::Shape s) {
  const std::vector<float> x = draw(s.rows * s.cols), gamma = draw(s.cols), beta = draw(s.cols);
  std::vector<float> y = nans(s.rows * s.cols), statistics = nans(2 * s.rows);
  std::vector<float> our_y = y, our_statistics = statistics;
  cpu().layer_norm(x.data(), gamma.data(), beta.data(), y.data(), statistics.data(), s);
  const steps::NormArgs args{.x = x.data(),
                             .gamma = gamma.data(),
                             .beta = beta.data(),
                             .y = our_y.data(),
                             .statistics = our_statistics.data(),
                             .rows = s.rows,
                             .cols = static_cast<int>(s.cols)};
  run((s.rows + 7) / 8, [&] { steps::layer_norm<kConfig>(args); });
  compare("layer_norm", our_y, y);
  compare("statistics", our_statistics, statistics);

  const std::vector<float> dy = draw(s.rows * s.cols);
  std::vector<float> dx = draw(s.rows * s.cols), d_gamma = draw(s.cols), d_beta = draw(s.cols);
  std::vector<float> our_dx = dx, our_d_gamma = d_gamma, our_d_beta = d_beta;
  cpu().layer_norm_backward(x.data(), gamma.data(), statistics.data(), dy.data(), dx.data(),
                            d_gamma.data(), d_beta.data(), s);
  const steps::NormArgs rows{.x = x.data(),
                             .gamma = gamma.data(),
                             .statistics = statistics.data(),
                             .dy = dy.data(),
                             .dx = our_dx.data(),
                             .rows = s.rows,
                             .cols = static_cast<int>(s.cols)};
  run((s.rows + 7) / 8, [&] { steps::layer_norm_backward<kConfig>(rows); });
  const steps::ColumnArgs columns{.dy = dy.data(),
                                  .x = x.data(),
                                  .statistics = statistics.data(),
                                  .sums = our_d_beta.data(),
                                  .along = our_d_gamma.data(),
                                  .rows = s.rows,
                                  .cols = static_cast<int>(s.cols)};
  run((s.cols + 7) / 8, [&] { steps::norm_columns<kConfig>(columns); });
  compare("layer_norm_backward", our_dx, dx);
  compare("d_gamma", our_d_gamma, d_gamma);
  compare("d_beta", our_d_beta, d_beta);
}

/// More rows than a block looks at together, and more columns than it has threads.
void check_embedding() {
  const asam::Shape s{300, 270};
  constexpr int kVocabulary = 7;
  std::vector<int> ids(static_cast<std::size_t>(s.rows));
  for (int& id : ids) id = static_cast<int>(random_bits() % (kVocabulary + 1)) - 1;  // -1: unknown
  const std::vector<float> dy = draw(s.rows * s.cols);
  std::vector<float> expected = draw(kVocabulary * s.cols), ours = expected;
  for (std::int64_t i = 0; i < s.rows * s.cols; ++i) {
    const int id = ids[static_cast<std::size_t>(i / s.cols)];
    if (id >= 0) expected[static_cast<std::size_t>(id * s.cols + i % s.cols)] += dy[i];
  }
  const steps::EmbedArgs args{.ids = ids.data(),
                              .y = ours.data(),
                              .dy = dy.data(),
                              .rows = s.rows,
                              .cols = static_cast<int>(s.cols),
                              .vocabulary = kVocabulary};
  run(kVocabulary, [&] { steps::embed_backward<kConfig>(args); });
  compare("embed_backward", ours, expected, 1e-5);
}

void check_masks() {
  // (2, 3, 5, 7) from a mask of heads and one of sequences and keys; heads twice.
  const std::vector<unsigned char> by_head = {1, 0, 1},
                                   by_key = {1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0, 1};
  const std::vector<int> two_lengths = {7, 4};
  std::vector<unsigned char> expected(2 * 6 * 5 * 7, 9), ours = expected;
  cpu().join_masks({.first = {by_head.data(), {0, 1, 0, 0}},
                    .second = {by_key.data(), {7, 0, 0, 1}},
                    .lengths = two_lengths.data(),
                    .sizes = {2, 3, 5, 7},
                    .repeat = 2,
                    .out = expected.data()});
  const steps::JoinArgs args{.first = {by_head.data(), {0, 1, 0, 0}},
                             .second = {by_key.data(), {7, 0, 0, 1}},
                             .lengths = two_lengths.data(),
                             .batch = 2,
                             .heads = 3,
                             .rows = 5,
                             .keys = 7,
                             .repeat = 2,
                             .out = ours.data()};
  run(2, [&] { steps::join_masks<kConfig>(args); });
  compare("join_masks", ours, expected, 0.0);
}

/// Three steps of one replayed graph: the arguments stay, the counter goes on.
void check_gelu(const tile::DropoutBits& bits, const asam::Drop& drop,
                const std::vector<float>& z) {
  std::vector<float> du = draw(9 * 13), expected = du, dz = nans(9 * 13), d_expected = dz;
  cpu().gelu_backward(z.data(), expected.data(), d_expected.data(), drop, {9, 13});
  const steps::GeluArgs args{.z = z.data(),
                             .du = du.data(),
                             .dz = dz.data(),
                             .bits = bits,
                             .site = drop.site,
                             .drops = true,
                             .rows = 9,
                             .cols = 13,
                             .first = static_cast<unsigned>(drop.first)};
  run(1, [&] { steps::gelu_backward<kConfig>(args); });
  compare("gelu_backward: u", du, expected);
  compare("gelu_backward: dz", dz, d_expected);
}

/// Heads of 16 bits, mixed and back, and q twice and back.
template <steps::Kept kKept>
void check_kept(DType dtype) {
  constexpr steps::Config kHalves{.kept = kKept};
  const asam::HeadShape s{2, 5, 3, 8};
  const std::int64_t one = s.rows() * s.heads * s.dim;
  asam::Memory memory({}, {});
  asam::CpuOps<float> ops(default_executor(), dtype, memory);
  using Halves = std::vector<std::uint16_t>;
  const auto narrow = [&](std::int64_t count) {
    Halves halves(static_cast<std::size_t>(count));
    ops.to_half(draw(count).data(), halves.data(), {1, count});
    return halves;
  };
  const auto kept = [](Halves& x) { return asam::Stored<float>::halves(x.data()); };
  Halves o = narrow(2 * one), da = narrow(one), qkv = narrow(3 * one);
  Halves d_o(o.size()), d_expected(o.size()), q2(o.size()), q2_expected(o.size());
  const std::vector<float> g = draw(6);
  std::vector<float> a = nans(one), a_expected = a, dg = nans(6), dg_expected = dg;
  const steps::MixArgs mix{.batch = 2,
                           .tokens = 5,
                           .heads = 3,
                           .dim = 8,
                           .o = o.data(),
                           .g = g.data(),
                           .a = a.data(),
                           .da = da.data(),
                           .d_o = d_o.data(),
                           .dg = dg.data()};
  run(1, [&] { steps::mix<kHalves>(mix); });
  run(6, [&] { steps::mix_backward<kHalves>(mix); });
  ops.mix(kept(o), g.data(), a_expected.data(), s);
  ops.mix_backward(kept(o), g.data(), kept(da), kept(d_expected), dg_expected.data(), nullptr, s);
  compare("mix of 16 bits", a, a_expected);
  compare("its d_o", d_o, d_expected, 0.0);
  compare("its dg", dg, dg_expected);
  steps::TwiceArgs twice{.from = qkv.data(), .to = q2.data(), .rows = 10, .heads = 3, .dim = 8};
  run(1, [&] { steps::twice<kHalves>(twice); });
  ops.twice(kept(qkv), kept(q2_expected), s);
  compare("twice of 16 bits", q2, q2_expected, 0.0);
  Halves dqkv = qkv, dqkv_expected = qkv;
  twice.from = o.data();
  twice.to = dqkv.data();
  run(1, [&] { steps::twice_backward<kHalves>(twice); });
  ops.twice_backward(kept(o), kept(dqkv_expected), s);
  compare("its backward", dqkv, dqkv_expected, 0.0);
}

void check_dropout() {
  asam::TrainState state;
  steps::State device{};
  device.scale = 1.0F;
  const std::vector<float> x = draw(9 * 13);
  std::vector<float> last;
  const asam::Drop drop{.p = 0.4, .seed = (7ULL << 32) + 5, .site = 9, .draw = 2, .state = &state};
  const DropoutMask mask({.p = drop.p, .seed = drop.seed, .offset = drop.draw});
  std::vector<float> ours = nans(9 * 13);
  steps::DropArgs args{
      .a = x.data(), .y = ours.data(), .site = drop.site, .drops = true, .rows = 9, .cols = 13};
  args.bits.key = tile::PhiloxKeys(mask.key()[0], mask.key()[1]);
  args.bits.offset = mask.offset();
  args.bits.limit = static_cast<unsigned>(mask.threshold() - 1);
  args.bits.scale = static_cast<float>(mask.scale());
  args.bits.counter = reinterpret_cast<const unsigned*>(&device.draws);
  const steps::EndArgs end{.state = &device};
  for (int step = 0; step < 3; ++step) {
    std::vector<float> expected = nans(9 * 13);
    cpu().drop_add(nullptr, x.data(), expected.data(), drop, {9, 13});
    run(1, [&] { steps::drop_add<kConfig>(args); });
    compare("drop_add of a step", ours, expected, 1e-6);
    check_gelu(args.bits, drop.from(40), x);
    const bool anew = ours != last;
    std::printf("%s drops anew\n", anew ? "ok" : "FAILED");
    failures += anew ? 0 : 1;
    last = ours;
    cpu().end_step(&state, {});
    run(1, [&] { steps::end_step<kConfig>(end); });
  }
}

void check_choice() {
  const std::int64_t blocks = 5, heads = 2, batch = 3, dim = 8, clusters = 6, tokens = 70;
  asam::Config config;
  config.pattern = asam::Pattern::automatic;
  config.block_size = 16;
  config.window_size = 20;
  config.density = 0.4;
  asam::TrainState state;
  state.draws = 3;
  const std::vector<float> qkv = draw(batch * tokens * 3 * heads * dim);
  std::vector<float> logits = draw(batch * heads * 5);
  logits[2] += 9.0F;   // clusters, so that they have gradients
  logits[24] += 9.0F;  // of the sequence of 19 tokens: blocks that are selected
  const std::vector<float> gate = draw(batch * heads), weight = draw(batch * heads);
  const std::vector<float> centroids = draw(heads * clusters * dim), temperature = {0.5F};
  struct Results {
    std::vector<int> pattern = std::vector<int>(6, -1), offsets = std::vector<int>(12 * 6, -1);
    std::vector<int> index = std::vector<int>(12 * 25, -1);
    std::vector<float> soft = nans(30), mixing = nans(6), density = nans(6), d_logits = nans(30);
    std::vector<float> d_qkv, d_centroids, d_temperature = {0.0F};
  } expected, ours;
  const auto fill = [&](Results& r) {
    r.d_qkv.assign(qkv.size(), 0.0F);
    r.d_centroids.assign(centroids.size(), 0.0F);
    asam::Choice<float> c;
    c.shape = {{batch, tokens, heads, dim}, 16, clusters};
    c.config = &config;
    c.lengths = lengths.data();
    c.training = true;
    c.draw = {.seed = 11, .site = 4, .draw = 2, .state = &state};
    c.qkv = qkv.data();
    c.logits = logits.data();
    c.gate = gate.data();
    c.centroids = centroids.data();
    c.temperature = temperature.data();
    c.pattern = r.pattern.data();
    c.soft = r.soft.data();
    c.mixing = r.mixing.data();
    c.density = r.density.data();
    c.offsets = r.offsets.data();
    c.index = r.index.data();
    c.d_weight = weight.data();
    c.d_logits = r.d_logits.data();
    c.d_qkv = r.d_qkv.data();
    c.d_centroids = r.d_centroids.data();
    c.d_temperature = r.d_temperature.data();
    return c;
  };
  const asam::Choice<float> truth = fill(expected);
  cpu().choose(truth);
  cpu().choose_backward(truth);

  steps::ChoiceArgs a = asam::choice_args(fill(ours));
  const std::int64_t lists = batch * heads, means = 2 * lists * blocks;
  std::vector<float> pooled = nans(means * dim), norms = nans(means), cosine = nans(means * 6);
  std::vector<float> share = cosine, d_cosine = cosine, d_scaled = norms;
  std::vector<unsigned char> seen(static_cast<std::size_t>(lists * 25), 9);
  std::vector<int> counts(static_cast<std::size_t>(lists * blocks), -1);
  std::vector<float> extremes = nans(2 * means * dim);
  a.pooled = pooled.data();
  a.extremes = extremes.data();
  a.norms = norms.data();
  a.cosine = cosine.data();
  a.share = share.data();
  a.d_cosine = d_cosine.data();
  a.d_scaled = d_scaled.data();
  a.seen = seen.data();
  a.counts = counts.data();
  run(means, [&] { steps::choice_means<kConfig>(a); });
  run(means, [&] { steps::choice_shares<kConfig>(a); });
  run(1, [&] { steps::choice_heads<kConfig>(a); });
  run(lists * blocks, [&] { steps::choice_rows<kConfig>(a); });
  run(2 * lists, [&] { steps::choice_lists<kConfig>(a); });
  compare("patterns", ours.pattern, expected.pattern, 0.0);
  compare("soft choices", ours.soft, expected.soft);
  compare("mixing", ours.mixing, expected.mixing);
  compare("density", ours.density, expected.density);
  compare("offsets", ours.offsets, expected.offsets, 0.0);
  compare("index", ours.index, expected.index, 0.0);
  run(1, [&] { steps::choice_logits_backward<kConfig>(a); });
  run(lists * blocks, [&] { steps::choice_near<kConfig>(a); });
  run(means, [&] { steps::choice_shares_backward<kConfig>(a); });
  run(heads * clusters, [&] { steps::choice_centroids_backward<kConfig>(a); });
  run(1, [&] { steps::choice_temperature_backward<kConfig>(a); });
  compare("d_logits", ours.d_logits, expected.d_logits);
  compare("d_qkv", ours.d_qkv, expected.d_qkv);
  compare("d_centroids", ours.d_centroids, expected.d_centroids);
  compare("d_temperature", ours.d_temperature, expected.d_temperature);
}

/// A token or a label that names no row gives NaN, the others what they would.
void check_numbers() {
  const std::vector<int> ids = {2, 4, -1, 0};
  const std::vector<float> table = draw(4 * 3);
  std::vector<float> y = draw(4 * 3);
  const steps::EmbedArgs embed{.ids = ids.data(),
                               .table = table.data(),
                               .y = y.data(),
                               .rows = 4,
                               .cols = 3,
                               .vocabulary = 4};
  run(1, [&] { steps::embed<kConfig>(embed); });
  std::vector<float> found, expected;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const int id = ids[i / 3];
    const bool known = id >= 0 && id < 4;
    found.push_back(known == !std::isnan(y[i]) ? (known ? y[i] : 0.0F) : 1e30F);
    expected.push_back(known ? table[static_cast<std::size_t>(id) * 3 + i % 3] : 0.0F);
  }
  compare("embed", found, expected, 0.0);

  const std::vector<float> logits = draw(2 * 3);
  for (const int label : {2, 3, -1}) {
    const std::vector<int> labels = {1, label};
    const bool known = label == 2;
    std::vector<float> d = nans(6), d_expected = d;
    asam::TrainState expected_state;
    steps::State state{.draws = 0, .loss = 0.0F, .scale = 1.0F};
    const steps::LossArgs loss{.logits = logits.data(),
                               .labels = labels.data(),
                               .d_logits = d.data(),
                               .state = &state,
                               .rows = 2,
                               .cols = 3};
    run(1, [&] { steps::cross_entropy<kConfig>(loss); });
    const std::vector<int> right = {1, 2};
    cpu().cross_entropy(logits.data(), right.data(), d_expected.data(), &expected_state, {2, 3});
    if (!known) {
      for (std::size_t j = 3; j < 6; ++j) d[j] = std::isnan(d[j]) ? d_expected[j] : 1e30F;
      state.loss = std::isnan(state.loss) ? expected_state.loss : 1e30F;
    }
    compare("cross_entropy", d, d_expected);
    compare("its loss", std::vector<float>{state.loss}, std::vector<float>{expected_state.loss});
  }
}

}  // namespace

int main() {
  check_numbers();
  check_pools();
  check_products();
  check_product_of_extremes();
  check_norm({11, 41});
  check_norm({9, 530});  // more columns than a lane holds
  check_embedding();
  check_masks();
  check_dropout();
  check_kept<steps::Kept::fp16>(DType::float16);
  check_kept<steps::Kept::bf16>(DType::bfloat16);
  check_choice();
  return failures == 0 ? 0 : 1;
}
