#include "plan_cache.h"

#include <string>
#include <unordered_map>

namespace tilewise::python {
namespace {

/// More shapes than a program comes back to; past it the cache begins anew.
constexpr std::size_t kMostPlans = 4096;

using Cache = std::unordered_map<std::string, std::shared_ptr<const Plan>>;

/// Never destroyed: a thread may still be in a call while the interpreter ends.
Cache& cache() {
  static Cache& plans = *new Cache;
  return plans;
}

template <class Tensors>
std::shared_ptr<const Plan> look_up(std::string&& key, const Call& call, const Tensors& tensors) {
  const auto found = cache().find(key);
  if (found != cache().end()) return found->second;
  auto made = std::make_shared<const Plan>(plan(tensors, call.spec, call.choice));
  if (cache().size() >= kMostPlans) cache().clear();
  cache().emplace(std::move(key), made);
  return made;
}

std::string begin_key(const Call& call) {
  std::string key;
  key.reserve(1024);
  call.append_key(key);
  return key;
}

}  // namespace

std::shared_ptr<const Plan> cached_plan(const Call& call, const ForwardTensors& t) {
  std::string key = begin_key(call) + 'f';
  for (const Tensor* x : {&t.q, &t.k, &t.v, &t.o, &t.lse}) append_key(key, *x);
  return look_up(std::move(key), call, t);
}

std::shared_ptr<const Plan> cached_plan(const Call& call, const BackwardTensors& t) {
  std::string key = begin_key(call) + 'b';
  for (const Tensor* x : {&t.q, &t.k, &t.v, &t.o, &t.lse, &t.d_o, &t.d_lse, &t.dq, &t.dk, &t.dv,
                          &t.dbias, &t.dsinks}) {
    append_key(key, *x);
  }
  return look_up(std::move(key), call, t);
}

std::size_t plan_cache_size() { return cache().size(); }

}  // namespace tilewise::python
