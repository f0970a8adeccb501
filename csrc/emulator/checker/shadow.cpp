// SPDX-License-Identifier: Apache-2.0
#include "checker/shadow.h"

namespace emu::check {
namespace {

template <class Cell>
void visit_uncovered(const Cell& cell, const Clock& clock, bool with_reads, uintptr_t begin,
                     uintptr_t end, const Shadow::Conflict& visit) {
  if (!clock.covers(cell.write.epoch)) visit(cell.write, begin, end);
  if (!with_reads) return;
  for (const Access& read : cell.reads) {
    if (!clock.covers(read.epoch)) visit(read, begin, end);
  }
}

}  // namespace

void Shadow::split(uintptr_t at) {
  auto next = cells_.lower_bound(at);
  if (next == cells_.begin()) return;
  auto cell = std::prev(next);
  if (cell->second.end <= at) return;
  Cell upper = cell->second;
  cell->second.end = at;
  cells_.emplace_hint(next, at, std::move(upper));
}

void Shadow::touch(uintptr_t begin, uintptr_t end, const Access& access, const Clock& clock,
                   const Conflict& conflict) {
  if (begin >= end) return;
  split(begin);
  split(end);
  auto cell = cells_.lower_bound(begin);
  if (access.is_write) {
    auto first = cell;
    for (; cell != cells_.end() && cell->first < end; ++cell) {
      visit_uncovered(cell->second, clock, true, cell->first, cell->second.end, conflict);
    }
    cell = cells_.erase(first, cell);
    cells_.emplace_hint(cell, begin, Cell{end, access, {}});
    return;
  }
  uintptr_t at = begin;
  while (at < end) {
    if (cell == cells_.end() || cell->first > at) {
      // Nobody wrote here yet, as far as is known.
      uintptr_t gap_end = cell == cells_.end() ? end : std::min(end, cell->first);
      cells_.emplace_hint(cell, at, Cell{gap_end, {}, {access}});
      at = gap_end;
      continue;
    }
    Cell& here = cell->second;
    visit_uncovered(here, clock, false, cell->first, here.end, conflict);
    auto mine = std::find_if(here.reads.begin(), here.reads.end(), [&](const Access& read) {
      return read.epoch.agent == access.epoch.agent;
    });
    if (mine == here.reads.end()) {
      here.reads.push_back(access);
    } else {
      *mine = access;
    }
    at = here.end;
    ++cell;
  }
}

void Shadow::for_each_uncovered(uintptr_t begin, uintptr_t end, const Clock& clock,
                                const Conflict& visit) const {
  auto cell = cells_.upper_bound(begin);
  if (cell != cells_.begin() && std::prev(cell)->second.end > begin) --cell;
  for (; cell != cells_.end() && cell->first < end; ++cell) {
    visit_uncovered(cell->second, clock, true, std::max(begin, cell->first),
                    std::min(end, cell->second.end), visit);
  }
}

void Shadow::forget(uintptr_t begin, uintptr_t end) {
  split(begin);
  split(end);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
}

}  // namespace emu::check
