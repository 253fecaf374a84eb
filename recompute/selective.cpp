#include "recompute/selective.h"

namespace loom::recompute {
namespace {

using autograd::Producer;
using autograd::ResultKeeper;

// Counts the operators of one forward and selects the kept ones.
class Choice {
 public:
  explicit Choice(Keep keep) : keep_(keep) {}

  bool next_is_kept(Producer producer) {
    return producer == Producer::kAttention || (keep_ != Keep::kAttention && products_++ % 2 == 0);
  }

 private:
  const Keep keep_;
  std::int64_t products_ = 0;
};

std::size_t index_of(Producer producer) { return static_cast<std::size_t>(producer); }

}  // namespace

class KeptResults::Keeping final : public ResultKeeper {
 public:
  Keeping(KeptResults& kept, const std::vector<std::pair<Shape, DType>>& saved)
      : kept_(kept), saved_(saved), choice_(kept.keep_) {}

  std::vector<Tensor> recall(Producer) override { return {}; }

  void computed(Producer producer, std::span<const Tensor> results) override {
    if (!choice_.next_is_kept(producer)) return;
    Kept& kept = kept_.kept_[index_of(producer)].emplace_back();
    kept.saved_before = saved_.size();
    for (const Tensor& result : results) {
      kept.results.push_back(result.detach());
      kept.versions.push_back(result.storage()->version());
    }
  }

 private:
  KeptResults& kept_;
  const std::vector<std::pair<Shape, DType>>& saved_;
  Choice choice_;
};

class KeptResults::Recalling final : public ResultKeeper {
 public:
  explicit Recalling(KeptResults& kept) : kept_(kept), choice_(kept.keep_) {}

  std::vector<Tensor> recall(Producer producer) override {
    if (!choice_.next_is_kept(producer)) return {};
    std::vector<Kept>& all = kept_.kept_[index_of(producer)];
    std::size_t& next = next_[index_of(producer)];
    if (next == all.size()) {
      raise<RecomputeError>(
          "recompute of '{}': forward kept {} results of {}, and came to one more when it ran again; it must do the "
          "same both times",
          kept_.path_, all.size(), producer == Producer::kAttention ? "attention" : "matrix products");
    }
    return take(all[next++]);
  }

  void computed(Producer, std::span<const Tensor>) override {}

 private:
  std::vector<Tensor> take(Kept& kept) const {
    if (kept.taken) {
      raise<RecomputeError>(
          "recompute of '{}': a second backward came to it, and the results it kept went with the first; go backward "
          "once from all losses together, or keep nothing",
          kept_.path_);
    }
    kept.taken = !kept.results.empty();
    for (std::size_t i = 0; i < kept.results.size(); ++i) {
      if (kept.results[i].storage()->version() == kept.versions[i]) continue;
      raise<RecomputeError>(
          "recompute of '{}': a kept result ('{}') was written to between forward and backward; keep nothing, or write "
          "to a copy",
          kept_.path_, kept.results[i].storage()->what());
    }
    return std::exchange(kept.results, {});
  }

  KeptResults& kept_;
  Choice choice_;
  std::array<std::size_t, kProducers> next_{};
};

std::unique_ptr<ResultKeeper> KeptResults::keeping(const std::vector<std::pair<Shape, DType>>& saved) {
  return std::make_unique<Keeping>(*this, saved);
}

std::unique_ptr<ResultKeeper> KeptResults::recalling() { return std::make_unique<Recalling>(*this); }

void KeptResults::drop_behind(std::size_t saved) {
  for (std::vector<Kept>& all : kept_) {
    for (Kept& kept : all) {
      if (kept.saved_before >= saved) kept.results.clear();
    }
  }
}

}  // namespace loom::recompute
