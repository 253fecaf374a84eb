#include "bench/accuracy_report.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>

namespace loom::bench {
namespace {

// Closer than this the published figures do not say which configuration is faster.
constexpr double kOrderMatters = 0.02;
constexpr double kWorthNaming = 0.15;

struct Speed {
  double published = 0;
  double predicted = 0;
  const char* unit = "";
};

std::optional<Speed> speed_of(const Compared& c) {
  if (c.row.tokens_per_s_per_device) {
    return Speed{*c.row.tokens_per_s_per_device, c.plan.tokens_per_s_per_device, "tok/s"};
  }
  if (c.row.hfu_tflops) return Speed{*c.row.hfu_tflops, c.plan.hfu_tflops, "HFU TFLOP/s"};
  if (c.row.mfu) return Speed{*c.row.mfu, c.plan.mfu, "MFU"};
  return std::nullopt;
}

std::optional<double> error(std::optional<double> published, double predicted) {
  if (!published) return std::nullopt;
  return predicted / *published - 1;
}

std::string number(double value) {
  return value >= 100 ? fmt::format("{:.0f}", value)
         : value >= 1 ? fmt::format("{:.1f}", value)
                      : fmt::format("{:.3f}", value);
}

std::string percent(std::optional<double> value) { return value ? fmt::format("{:+.1f} %", 100 * *value) : ""; }

bool is_gpu(const std::string& device) { return !device.starts_with("ascend"); }

// "published / predicted (error)".
std::string memory_cell(std::optional<double> published, double predicted) {
  if (!published) return fmt::format("- / {:.1f}", predicted);
  return fmt::format("{:.1f} / {:.1f} ({})", *published, predicted, percent(error(published, predicted)));
}

std::string verdict(const Compared& c) {
  std::vector<std::string> words;
  if (c.plan.out_of_memory) words.emplace_back("out of memory");
  if (c.wrong_about_memory()) {
    words.emplace_back(c.plan.out_of_memory ? "**it ran**" : "**it ran out of memory**");
  } else if (c.row.out_of_memory) {
    words.emplace_back(*c.row.out_of_memory ? "as published" : "fits, as published");
  }
  if (c.row.calibration) words.emplace_back("calibration");
  if (c.plan.host_bound) words.emplace_back("limited by the host");
  if (!c.row.note.empty()) words.push_back(c.row.note);
  return fmt::format("{}", fmt::join(words, "; "));
}

struct Order {
  int pairs = 0;
  int inverted = 0;

  double tau() const { return pairs == 0 ? 1 : 1 - 2.0 * inverted / pairs; }
};

Order order_of(const std::vector<const Compared*>& rows, std::vector<std::string>& inverted) {
  Order order;
  for (const Compared* slow : rows) {
    for (const Compared* fast : rows) {
      const auto a = speed_of(*slow), b = speed_of(*fast);
      if (!a || !b || b->published <= a->published * (1 + kOrderMatters)) continue;
      ++order.pairs;
      if (b->predicted > a->predicted) continue;
      ++order.inverted;
      inverted.push_back(fmt::format("{} over {}", fast->row.id, slow->row.id));
    }
  }
  return order;
}

class Page {
 public:
  Page(const PublishedRows& all, const std::vector<Compared>& rows) : all_(all), rows_(rows) {}

  std::string text(const std::string& command) {
    line("# Plans compared with published runs\n");
    line("`{}` made this page from `bench/published_rows.json`; every figure below is its output.\n", command);
    line(
        "Errors compare predictions with published figures, with their sign: +5 % is a prediction that is too fast, or "
        "too much memory. Each kind of device has one profile (`configs/devices`). Rows marked *calibration* helped to "
        "set figures of the profile (each profile names these figures); all other rows are predicted unchanged. If a "
        "source describes its network, the plan uses it. Each table names the release of the software that its plans assume "
        "(`configs/software`).\n");
    summary();
    calibration_rows();
    order();
    worst();
    for (const auto& [name, source] : all_.sources.items()) table(name, source);
    left_out();
    return std::move(text_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
  }

  std::map<std::string, std::vector<const Compared*>> by_device() const {
    std::map<std::string, std::vector<const Compared*>> groups;
    for (const Compared& c : rows_) groups[c.row.device].push_back(&c);
    return groups;
  }

  template <class Of>
  static std::string mean_absolute(const std::vector<const Compared*>& rows, Of of, bool with_calibration) {
    double sum = 0;
    int count = 0;
    for (const Compared* c : rows) {
      const std::optional<double> e = of(*c);
      if (!e || (c->row.calibration && !with_calibration)) continue;
      sum += std::abs(*e);
      ++count;
    }
    return count == 0 ? "-" : fmt::format("{:.1f} % of {}", 100 * sum / count, count);
  }

  void summary() {
    line("## Mean absolute error\n");
    line("| device | speed, rows predicted unchanged | speed, all rows | reserved memory | allocated memory |");
    line("|---|---|---|---|---|");
    const auto speed = [](const Compared& c) { return c.speed_error(); };
    const auto reserved = [](const Compared& c) { return c.reserved_error(); };
    const auto allocated = [](const Compared& c) { return c.allocated_error(); };
    std::vector<const Compared*> gpus;
    const auto add = [&](const std::string& name, const std::vector<const Compared*>& rows) {
      line("| {} | {} | {} | {} | {} |", name, mean_absolute(rows, speed, false), mean_absolute(rows, speed, true),
           mean_absolute(rows, reserved, true), mean_absolute(rows, allocated, true));
    };
    for (const auto& [device, rows] : by_device()) {
      add(device, rows);
      if (is_gpu(device)) gpus.insert(gpus.end(), rows.begin(), rows.end());
    }
    add("all GPUs", gpus);
    const auto wrong = std::ranges::count_if(rows_, [](const Compared& c) { return c.wrong_about_memory(); });
    line("\nOut of memory: {} of {} predictions are wrong.\n", wrong, rows_.size());
    line("Speed of GPUs and NPUs, rows predicted unchanged:\n");
    by("software",
       [&](const PublishedRow& row) { return all_.sources.at(row.source).at("software").get<std::string>(); });
    by("sequence", [](const PublishedRow& row) { return row.seq; });
    by("devices", [](const PublishedRow& row) { return row.devices; });
  }

  // A table of the mean error by a property of the rows, ascending.
  template <class Of>
  void by(std::string_view property, Of of) {
    std::map<decltype(of(rows_.front().row)), std::vector<const Compared*>> groups;
    for (const Compared& c : rows_) groups[of(c.row)].push_back(&c);
    line("| {} | mean absolute error |", property);
    line("|---|---|");
    for (const auto& [value, rows] : groups) {
      line("| {} | {} |", value,
           mean_absolute(
               rows, [](const Compared& c) { return c.speed_error(); }, false));
    }
    line("");
  }

  void calibration_rows() {
    line("## Rows used for calibration\n");
    for (const auto& [device, rows] : by_device()) {
      std::vector<std::string> ids;
      for (const Compared* c : rows) {
        if (c->row.calibration) ids.push_back(c->row.id);
      }
      line("- `{}`: {}", device, ids.empty() ? "none of these" : fmt::format("{}", fmt::join(ids, ", ")));
    }
    line("");
  }

  void order() {
    line("## Order of configurations\n");
    line("Pairs of one table and device whose published speeds differ by more than 2 %.\n");
    line("| table | device | pairs | inverted | Kendall's tau | which |");
    line("|---|---|---|---|---|---|");
    for (const auto& [source, description] : all_.sources.items()) {
      std::map<std::string, std::vector<const Compared*>> groups;
      for (const Compared& c : rows_) {
        if (c.row.source == source) groups[c.row.device].push_back(&c);
      }
      for (const auto& [device, rows] : groups) {
        std::vector<std::string> inverted;
        const Order order = order_of(rows, inverted);
        if (order.pairs == 0) continue;
        line("| {} | {} | {} | {} | {:.2f} | {} |", source, device, order.pairs, order.inverted, order.tau(),
             fmt::join(inverted, ", "));
      }
    }
    line("");
  }

  void worst() {
    std::vector<const Compared*> rows;
    for (const Compared& c : rows_) {
      if (c.speed_error() && std::abs(*c.speed_error()) > kWorthNaming) rows.push_back(&c);
    }
    std::ranges::stable_sort(rows, std::greater<>{}, [](const Compared* c) { return std::abs(*c->speed_error()); });
    line("## Rows that are more than 15 % off\n");
    if (rows.empty()) line("None.");
    for (const Compared* c : rows) {
      line("- {} {}: {}; {:.0f} % of the predicted step is exposed communication{}", c->row.id,
           percent(c->speed_error()), c->row.text(), 100 * c->plan.communication_share,
           c->plan.host_bound ? ", and the host limits the step" : "");
    }
    line("\nCauses, and further differences:\n");
    for (const std::string& cause : all_.causes) line("- {}", cause);
    line("");
  }

  void table(const std::string& name, const nlohmann::ordered_json& source) {
    line("## {}\n", name);
    line("Source: {}. {}.", source.at("source").get<std::string>(), source.at("conditions").get<std::string>());
    line("Software: {}.", source.at("software").get<std::string>());
    line("Speed: {}. Memory: {}.", source.at("throughput").get<std::string>(), source.at("memory").get<std::string>());
    if (source.contains("assumed")) line("Assumed: {}.", source.at("assumed").get<std::string>());
    line(
        "\nMemory in GiB, published / predicted; allocated and reserved are the peak of a step and the segments after "
        "it.\n");
    line("| row | configuration | published | predicted | error | reserved | allocated | |");
    line("|---|---|---|---|---|---|---|---|");
    for (const Compared& c : rows_) {
      if (c.row.source != name) continue;
      const auto speed = speed_of(c);
      line("| {} | {} | {} | {} | {} | {} | {} | {} |", c.row.id, c.row.text(),
           speed ? number(speed->published) + " " + speed->unit : "-",
           number(speed ? speed->predicted : c.plan.tokens_per_s_per_device), percent(c.speed_error()),
           memory_cell(c.row.reserved_gib, c.plan.reserved_gib), memory_cell(c.row.allocated_gib, c.plan.allocated_gib),
           verdict(c));
    }
    line("");
  }

  void left_out() {
    line("## Rows of these tables that are not planned\n");
    for (const auto& entry : all_.left_out) {
      line("- {}: {}", entry.at("rows").get<std::string>(), entry.at("why").get<std::string>());
    }
  }

  const PublishedRows& all_;
  const std::vector<Compared>& rows_;
  std::string text_;
};

}  // namespace

std::optional<double> Compared::speed_error() const {
  const auto speed = speed_of(*this);
  return speed ? std::optional(speed->predicted / speed->published - 1) : std::nullopt;
}

std::optional<double> Compared::reserved_error() const { return error(row.reserved_gib, plan.reserved_gib); }
std::optional<double> Compared::allocated_error() const { return error(row.allocated_gib, plan.allocated_gib); }

bool Compared::wrong_about_memory() const { return plan.out_of_memory != row.out_of_memory.value_or(false); }

std::string accuracy_page(const PublishedRows& all, const std::vector<Compared>& rows, const std::string& command) {
  return Page(all, rows).text(command);
}

double mean_speed_error_on_gpus(const std::vector<Compared>& rows) {
  double sum = 0;
  int count = 0;
  for (const Compared& c : rows) {
    if (c.row.calibration || !is_gpu(c.row.device) || !c.speed_error()) continue;
    sum += std::abs(*c.speed_error());
    ++count;
  }
  return count == 0 ? 0 : sum / count;
}

std::string accuracy_line(const Compared& c) {
  const auto speed = speed_of(c);
  return fmt::format("{:<9} {:<10} {:>9} {:>9} {:>9} {:>9}  exposed {:>3.0f} %  {}", c.row.id, c.row.device,
                     speed ? number(speed->published) : "-", number(speed ? speed->predicted : 0),
                     percent(c.speed_error()), percent(c.reserved_error()), 100 * c.plan.communication_share,
                     verdict(c));
}

}  // namespace loom::bench
