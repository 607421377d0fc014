"""Documents in which mini reasons at length: depth-first searches and repeated sums, in the wording
of `pith eval recursion --trace` and `pith eval derivation`.

Every token that is to be predicted follows from one look at an earlier place, or from an addition
modulo 20.
"""

import language
from reading import END
from tasks import ANSWER_WEIGHT

MODULUS = 20
MAX_DEGREE = 4
STOP_WEIGHT = 8.0  # of the token that ends the steps, one among dozens that go on


def graph(rng, n_node):
    """{name: neighbours in search order}: a random tree with up to a quarter extra edges."""
    names = [language.NAMES[i] for i in rng.permutation(len(language.NAMES))[:n_node]]
    edges = {name: [] for name in names}

    def link(a, b):
        edges[a].append(b)
        edges[b].append(a)

    for i in range(1, n_node):
        free = [name for name in names[:i] if len(edges[name]) < MAX_DEGREE]
        link(names[i], free[rng.integers(len(free))])
    for _ in range(rng.integers(0, n_node // 4 + 1)):
        a, b = (names[j] for j in rng.integers(0, n_node, 2))
        if a != b and b not in edges[a] and max(len(edges[a]), len(edges[b])) < MAX_DEGREE:
            link(a, b)
    return {
        name: [edges[name][j] for j in rng.permutation(len(edges[name]))]
        for name in (names[i] for i in rng.permutation(n_node))
    }


def search(edges, start):
    """[(text of the step's lines without its number, (stack, visited) after it)], to the end of the
    search."""
    stack, visited, steps = [start], [start], []
    while True:
        here, text = stack[-1], f"{stack[-1]}:"
        for neighbour in edges[here]:
            if neighbour not in visited:
                visited.append(neighbour)
                stack.append(neighbour)
                text += f" {neighbour} new.\n{len(visited)} {neighbour} under {here}.\n"
                break
            text += f" {neighbour} old,"
        else:
            stack.pop()
            if not stack:
                return steps
            text += f" end. Back to {stack[-1]}.\n"
        steps.append((text, (list(stack), list(visited))))


def state(stack, visited):
    under = " under ".join(reversed(stack))
    seen = ", ".join(f"{i + 1} {name}" for i, name in enumerate(visited))
    return f"State: at {stack[-1]}. Stack: {under}. Visited: {seen}."


def next_weight(i, count):
    """Of the token that begins step i of count: more where it is nearly time to stop."""
    return STOP_WEIGHT / 2 if i >= count - 2 else ANSWER_WEIGHT


class Reasoning:
    def __init__(self, surprise_weight):
        self.surprise_weight = surprise_weight

    def trace(self, rng, n_tok):
        """One search; the graph is as large as the length allows, 30 nodes at most."""
        most = max(4, min(30, n_tok // 26))
        edges = graph(rng, int(rng.integers(max(3, most // 2), most + 1)))
        start = list(edges)[rng.integers(len(edges))]
        steps = search(edges, start)
        count = int(rng.integers(min(3, len(steps)), len(steps) + 1))
        drawn = "Graph:\n" + "".join(f"- {a}: {', '.join(b)}.\n" for a, b in edges.items())
        parts = [
            (drawn, self.surprise_weight),
            (f"Search of {count} steps from {start}.\n", self.surprise_weight),
            (f"1 {start}.\n", ANSWER_WEIGHT),
        ]
        for i, (text, _) in enumerate(steps[:count]):
            parts.append(("Step", next_weight(i, count)))
            parts.append((f" {i + 1} of {count}: {text}", ANSWER_WEIGHT))
        last = state(*steps[count - 1][1])
        parts += [(last[:5], STOP_WEIGHT), (last[5:], ANSWER_WEIGHT)]
        return parts + [(END, ANSWER_WEIGHT)]

    def derivation(self, rng, n_tok):
        """Sums whose parts recur."""
        most = max(3, min(60, n_tok // 45))
        n_part = int(rng.integers(2 if rng.random() < 0.5 else most // 2, most + 1))
        pool = rng.integers(0, MODULUS, (max(1, (n_part + 1) // 2), 2))
        pairs = [tuple(int(x) for x in pool[rng.integers(len(pool))]) for _ in range(n_part)]
        listed = " ".join(f"#{i + 1} {a}&{b}" for i, (a, b) in enumerate(pairs))
        parts = [(f"Sums modulo {MODULUS}: {listed}.\n\n", self.surprise_weight)]
        total = 0
        for i, (a, b) in enumerate(pairs):
            s, was = (a + b) % MODULUS, total
            t = (s + b) % MODULUS
            u = (t + a) % MODULUS
            total = (total + u) % MODULUS
            parts.append(("Part", next_weight(i, n_part)))
            parts.append(
                (
                    f" #{i + 1} {a}&{b}: {a}+{b}={s}, {s}+{b}={t}, {t}+{a}={u}."
                    f" Total {was}+{u}={total}.\n\n",
                    ANSWER_WEIGHT,
                )
            )
        parts += [("Answer", STOP_WEIGHT), (f": {total}.", ANSWER_WEIGHT)]
        return parts + [(END, ANSWER_WEIGHT)]
