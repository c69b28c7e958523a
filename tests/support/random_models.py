"""Random acyclic world models, for hypothesis: any shape, profiles that are not possible, equal successors."""

from typing import Any

from hypothesis import strategies as st
from world_models import Table

NAMINGS = {
    "numbers": lambda i: i,
    "pairs": lambda i: (i % 3, i),
    "mixed": lambda i: i if i % 2 else f"s{i}",  # some of which do not compare
    "sets": lambda i: frozenset({i, i + 1}),  # which have only a partial order
}


@st.composite
def acyclic_models(draw: st.DrawFn, most: int = 12) -> Table:
    """A table of up to `most` states; a successor lies later in a hidden order than its state."""
    agents, actions = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    naming = NAMINGS[draw(st.sampled_from(sorted(NAMINGS)))]
    names = [naming(i) for i in range(most)]
    hidden = draw(st.permutations(names))
    profiles = [tuple(i // actions**k % actions for k in range(agents)) for i in range(actions**agents)]
    table: dict[Any, dict[Any, Any]] = {}
    for place, state in enumerate(hidden[:-1]):
        possible = draw(st.lists(st.sampled_from(profiles), unique=True, max_size=len(profiles)))
        table[state] = {profile: draw(_outcomes(hidden[place + 1 :])) for profile in possible}
    return Table(agents, actions, table, hidden[0])


@st.composite
def _outcomes(draw: st.DrawFn, successors: list[Any]) -> list[tuple[float, Any]]:
    weights = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any))
    return [(weight / sum(weights), draw(st.sampled_from(successors))) for weight in weights]
