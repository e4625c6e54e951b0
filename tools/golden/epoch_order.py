#!/usr/bin/env python3
"""The order of an epoch, computed a second time.

Written from the arithmetic in crates/forebay-loader/src/plan/mod.rs, not from its
code. The golden tests of the plan hold what this prints, so that the order of an
epoch never changes silently and two implementations agree on it.

    tools/golden/epoch_order.py            prints every golden value of the Rust tests
"""

from math import gcd, isqrt

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def child(key, value):
    return mix(key ^ mix((value + GOLDEN) & MASK))


def root(seed):
    return child(GOLDEN, seed)


def below(bits, n):
    return bits * n >> 64


def permutation(n, key):
    """A function from 0..n to 0..n that is a bijection."""
    if n == 1:
        return lambda x: 0
    a = isqrt(n - 1) + 1
    b = -(-n // a)
    rounds = 32 if n <= 64 else 12

    def at(x):
        while True:
            left, right = divmod(x, b)
            for i in range(rounds):
                k = (key + (i + 1) * GOLDEN) & MASK
                if i % 2 == 0:
                    left = (left + below(mix(k ^ right), a)) % a
                else:
                    right = (right + below(mix(k ^ left), b)) % b
            x = left * b + right
            if x < n:
                return x

    return at


def blocks(n, seed, epoch, virtual_ranks, block, window, in_storage=False):
    """A function from positions to samples, shuffled by blocks and windows, or by windows alone."""
    key = child(root(seed), epoch)
    full = n // block
    rotation = below(child(key, 1), n)
    order = permutation(max(full, 1), child(key, 2))
    place = places(n, seed, epoch, virtual_ranks, block, window)

    def at(p):
        q = place(p)
        k = q // block
        if k < full and not in_storage:
            k = order(k)
        return (rotation + k * block + q % block) % n

    return at


def places(n, seed, epoch, virtual_ranks, block, window):
    """A function from positions to places in the sequence of blocks."""
    key = child(root(seed), epoch)

    def at(p):
        virtual_rank, j = p % virtual_ranks, p // virtual_ranks
        start = virtual_rank * (n // virtual_ranks) + min(virtual_rank, n % virtual_ranks)
        length = n // virtual_ranks + (1 if virtual_rank < n % virtual_ranks else 0)
        skip = start % block + block * (window * virtual_rank // virtual_ranks)
        w = (j + skip) // (window * block)
        low = max(w * window * block - skip, 0)
        high = min((w + 1) * window * block - skip, length)
        within = permutation(high - low, child(child(child(key, 3), virtual_rank), w))
        return start + low + within(j - low)

    return at


def assignment(samples, virtual_ranks, world_size, batch_size, start, place):
    """The positions of each rank in a global batch. `place` gives places in the sequence of blocks."""
    classes = gcd(virtual_ranks, world_size)
    count, residues = world_size // classes, virtual_ranks // classes
    near = residues * GOLDEN >> 64
    step = min((abs(m - near), m) for m in range(1, residues + 1) if gcd(m, residues) == 1)[1]
    spread = {k * step % residues: k for k in range(residues)}
    ranks = []
    for c in range(classes):
        taken = range(start + c, start + world_size * batch_size, classes)
        real = sorted((p for p in taken if p < samples), key=lambda p: (spread[p // classes % residues], place(p), p))
        padding = [p for p in taken if p >= samples]
        for number in range(count):
            low, high = (i * (len(real) // count) + min(i, len(real) % count) for i in (number, number + 1))
            fill = range(number * batch_size - low, (number + 1) * batch_size - high)
            ranks.append(sorted(real[low:high]) + [padding[i] for i in fill])
    return ranks


def alias_table(weights):
    """Thresholds, of 2^32, and aliases of an alias table (Vose)."""
    n, total = len(weights), 0.0
    for weight in weights:
        total += weight
    parts = [weight * n / total for weight in weights]
    thresholds, aliases = [1 << 32] * n, list(range(n))
    small = [i for i in range(n) if parts[i] < 1.0]
    large = [i for i in range(n) if parts[i] >= 1.0]
    while small and large:
        s, big = small.pop(), large.pop()
        thresholds[s], aliases[s] = int(parts[s] * (1 << 32)), big
        parts[big] = (parts[big] + parts[s]) - 1.0
        (small if parts[big] < 1.0 else large).append(big)
    return thresholds, aliases


def draws(count, groups, weights, seed, epoch):
    """The picks of an epoch that draws with replacement, sorted."""
    thresholds, aliases = alias_table(weights)
    key = child(child(root(seed), epoch), 5)
    picks = []
    for v in range(count):
        k = child(key, v)
        column = below(child(k, 1), len(groups))
        own = below(child(k, 2), 1 << 32) < thresholds[column]
        members = groups[column if own else aliases[column]]
        picks.append(members[below(child(k, 3), len(members))])
    return sorted(picks)


def portions(count, groups, weights, seed, epoch):
    """The picks of an epoch that has a portion of each group, sorted."""
    total, partial, before, picks = 0.0, 0.0, 0, []
    for weight in weights:
        total += weight
    for g, (members, weight) in enumerate(zip(groups, weights)):
        partial += weight
        end = int(count * (partial / total) + 0.5)
        portion, before = end - before, end
        for i in range(epoch * portion, (epoch + 1) * portion):
            key = child(child(child(root(seed), 6), g), i // len(members))
            picks.append(members[permutation(len(members), key)(i % len(members))])
    return sorted(picks)


def epoch_order(picks, repeats, row, at):
    """(sample, occurrence) at each position; `at` orders the picks."""
    order = []
    for p in range(len(picks) * repeats):
        g = p // (row * repeats)
        offset = p - g * row * repeats
        width = min(row, len(picks) - g * row)
        v = at(g * row + offset % width)
        before = v - picks.index(picks[v])
        order.append((picks[v], before * repeats + offset // width))
    return order


def main():
    key = child(root(7), 3)
    print("key", hex(key))
    print("10:", [permutation(10, key)(x) for x in range(10)])
    million = permutation(1_000_000, key)
    print("million:", [million(x) for x in range(6)], million(999_999))
    small = blocks(30, 1, 2, 4, 4, 2)
    print("small:", [small(p) for p in range(30)])
    full = permutation(30, child(child(root(1), 2), 4))
    print("full:", [full(p) for p in range(30)])
    window = blocks(30, 1, 2, 4, 4, 2, in_storage=True)
    print("window:", [window(p) for p in range(30)])
    large = blocks(1_281_167, 42, 3, 64, 32, 2)
    print("large:", [large(k * 177_777) for k in range(8)])
    groups = [[0, 3, 5, 6], [1, 2], [4, 7, 8, 9]]
    picks = draws(12, groups, [1.0, 2.5, 0.25], 8, 2)
    print("draws:", epoch_order(picks, 2, 2, blocks(12, 8, 2, 2, 2, 2)))
    picks = portions(7, [[0, 1, 2], [4, 6, 7, 8, 9]], [1.5, 0.5], 8, 2)
    print("portions:", epoch_order(picks, 1, 2, blocks(7, 8, 2, 2, 2, 2)))
    print("doc:", [large(p) for p in range(4)])
    place = places(100, 3, 1, 12, 2, 2)
    print("assignment of 100:", assignment(100, 12, 5, 4, 80, place), assignment(100, 12, 9, 12, 0, place)[4:6])
    place = places(1_281_167, 3, 1, 64, 32, 2)
    print("assignment of a million:", assignment(1_281_167, 64, 56, 32, 56 * 320, place)[29][:8])


if __name__ == "__main__":
    main()
