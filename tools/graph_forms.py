"""Integers that depend on shapes, as exact polynomials of the symbols B, S and P.

A grid of recordings with b batch sizes, s sequence lengths and p numbers of patches determines the polynomials whose
degree is at most 1 in B and 2 in S and P, and less than b, s and p. One more recording verifies them: an integer that
is no such polynomial of the shapes differs there.
"""

import itertools
from fractions import Fraction

LETTERS = ("B", "S", "P")
HIGHEST = {"B": 1, "S": 2, "P": 2}


class NotScalable(Exception):
    """The recordings are not of one program; the text says where they differ."""


def product_name(letters, powers):
    name = "".join(letter + (str(power) if power > 1 else "") for letter, power in zip(letters, powers) if power)
    return name or "1"


class Fit:
    """Forms over the recordings at `points`: a list of {"B": .., "S": .., "P": ..}, the last of them verifies.

    basis   names of products, "1" first.
    forms   rows of coefficients over the basis: integers, or [numerator, denominator].
    """

    def __init__(self, points):
        self.grid, self.check = points[:-1], points[-1]
        self.letters = [letter for letter in LETTERS if letter in points[0]]
        self.powers = self._products()
        self.basis = [product_name(self.letters, powers) for powers in self.powers]
        self.forms = []
        self.known = {}
        self.inverse = inverse([self._values(point) for point in self._square()])
        self.rows = [self.grid.index(point) for point in self._square()]

    def _degrees(self):
        return {
            letter: min(HIGHEST[letter], len({point[letter] for point in self.grid}) - 1) for letter in self.letters
        }

    def _products(self):
        degrees = self._degrees()
        ranges = [range(degrees[letter] + 1) for letter in reversed(self.letters)]
        return [tuple(reversed(powers)) for powers in itertools.product(*ranges)]

    def _square(self):
        """As many points of the grid as there are products: a smaller grid, which determines them."""
        degrees = self._degrees()
        kept = {
            letter: sorted({point[letter] for point in self.grid})[: degrees[letter] + 1] for letter in self.letters
        }
        return [point for point in self.grid if all(point[letter] in kept[letter] for letter in self.letters)]

    def _values(self, point):
        values = []
        for powers in self.powers:
            value = 1
            for letter, power in zip(self.letters, powers):
                value *= point[letter] ** power
            values.append(value)
        return values

    def form(self, integers):
        """The integer itself if all are equal, else {"f": row of forms}."""
        if len(set(integers)) == 1:
            return integers[0]
        index = self.known.get(integers)
        if index is None:
            row = self._row(integers)
            index = self.known[integers] = len(self.forms)
            self.forms.append(row)
        return {"f": index}

    def _row(self, integers):
        right = [integers[row] for row in self.rows]
        row = [sum(a * b for a, b in zip(line, right)) for line in self.inverse]
        for point, integer in zip([*self.grid, self.check], integers):
            predicted = sum(a * b for a, b in zip(row, self._values(point)))
            if predicted != integer:
                raise NotScalable(
                    f"an integer is {integer} at {place(point)}, where the fit of the other shapes says "
                    f"{float(predicted):g}"
                )
        return [written(coefficient) for coefficient in row]


def place(point):
    return ", ".join(f"{letter} = {point[letter]}" for letter in LETTERS if letter in point)


def written(coefficient):
    if coefficient.denominator == 1:
        return coefficient.numerator
    return [coefficient.numerator, coefficient.denominator]


def inverse(matrix):
    """Of a square matrix of integers, exactly."""
    size = len(matrix)
    rows = [
        [Fraction(value) for value in line] + [Fraction(int(i == j)) for j in range(size)]
        for i, line in enumerate(matrix)
    ]
    for column in range(size):
        pivot = next(row for row in range(column, size) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = rows[column][column]
        rows[column] = [value / scale for value in rows[column]]
        for row in range(size):
            if row != column and rows[row][column]:
                factor = rows[row][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column])]
    return [row[size:] for row in rows]
