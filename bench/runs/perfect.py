"""A perfect player of PettingZoo's tic-tac-toe: it draws among the moves of the highest value, by minimax."""

from functools import cache
from itertools import count
from typing import Any

import numpy as np

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]  # of cells
_numbers = count()  # of players
Board = tuple[int, ...]  # 1 where the player who moves has a mark, -1 where the other one has, 0 elsewhere


@cache
def value_of(board: Board) -> int:
    """For the player who moves: 1 if it wins, 0 for a draw, -1 if it loses."""
    if any(all(board[cell] == -1 for cell in line) for line in LINES):
        return -1
    return max((-value_of(after(board, move)) for move in range(9) if not board[move]), default=0)


def after(board: Board, move: int) -> Board:
    """The board as the other player sees it."""
    return tuple(-(mark or cell == move) for cell, mark in enumerate(board))


def best_moves(board: Board) -> list[int]:
    values = {move: -value_of(after(board, move)) for move in range(9) if not board[move]}
    return [move for move, value in values.items() if value == max(values.values())]


class Perfect:
    def __init__(self) -> None:
        self._rng = np.random.default_rng(next(_numbers))  # else games in several copies would be the same

    def act(self, obs: Any) -> int:
        own, other = (obs["observation"][..., plane].ravel().astype(int) for plane in (0, 1))
        return int(self._rng.choice(best_moves(tuple((own - other).tolist()))))
