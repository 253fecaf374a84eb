#include "engine/data/turn_cut.h"

#include <algorithm>

namespace loom::data {
namespace {

bool fits(TurnLengths turn, std::int64_t room) { return turn.prompt <= room && turn.answer <= room - turn.prompt; }

// Less than the answer's length, for the turn does not fit.
std::int64_t share_of_answer(TurnLengths turn, std::int64_t room) {
  return room * turn.answer / (turn.prompt + turn.answer);
}

}  // namespace

TurnLengths cut_a(TurnLengths turn, std::int64_t room) {
  if (fits(turn, room)) return turn;
  const std::int64_t answer = std::min(std::max<std::int64_t>(share_of_answer(turn, room), 1), turn.answer);
  return {std::min(room - answer, turn.prompt), answer};
}

TurnLengths cut_b(TurnLengths turn, std::int64_t room) {
  if (fits(turn, room)) return turn;
  std::int64_t most = share_of_answer(turn, room);
  if (turn.answer < room - turn.answer) {
    most = room;
  } else if (turn.prompt < room - turn.prompt) {
    most = room - turn.prompt;
  }
  const std::int64_t answer = std::min(most, turn.answer);
  return {std::min(std::max<std::int64_t>(room - answer, 0), turn.prompt), answer};
}

}  // namespace loom::data
