/// Model's and Trainer's other side.
#pragma once

#include <memory>
#include <vector>

#include "tilewise/asam.h"

namespace tilewise::asam {

/// A model of one element type.
class Model::Impl {
 public:
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  virtual ~Impl() = default;

  Config config;
  Launch launch;

  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual void forward(const Tensor& x, const Tensor& y, bool training, std::uint32_t draw,
                       const Visible& visible) = 0;
  virtual void backward(const Tensor& x, const Tensor& dy, const Tensor& dx) = 0;
  virtual void clear_gradients() = 0;
  virtual LayerInfo info(int index) const = 0;
  virtual std::int64_t bytes() const = 0;
  virtual void synchronize() const = 0;
  /// Forward, loss, backward, Adam.
  virtual void train(const Tensor& x, const Tensor& labels, const TrainOptions& options,
                     const Visible& visible) = 0;
  virtual void start_training(const TrainOptions& options) = 0;
  virtual TrainStatus status() const = 0;
};

/// Throws InvalidArgument, naming the field.
void check_config(const Config& config);
void check_options(const TrainOptions& options);

}  // namespace tilewise::asam
