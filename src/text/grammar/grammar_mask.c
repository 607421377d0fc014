/*
 * grammar_mask.c - which tokens may follow: walks the tree of the vocabulary's bytes with sets of
 * threads. The result for a set is kept as an entry. Where a token leaves the set's floor the entry
 * has an exit. Tokens behind exits depend on where the text returns to, and are an entry of their
 * own, kept by (entry, return). So a text's mask is the union of a few kept entries.
 *
 * Plain characters (vocab_tree.h) that all make the same set of a set, as within JSON's strings,
 * are not walked. Tokens of at most as many of them as may follow are allowed together. Of the
 * other tokens only the part behind such characters is walked, from the set that they make.
 */
#include "base/mem.h"
#include "text/grammar/grammar_machine.h"

#define MASK_BYTES_MAX ((size_t)128 << 20) /* then all entries are forgotten */
#define SAME_MAX 16                        /* sets within one character */

static pith_status fail(struct grammar_machine *m, pith_status status)
{
    if (m->status == PITH_OK)
        m->status = status;
    return status;
}

/* ---- plain characters ---- */

/* Well-formed UTF-8 (Unicode, table 3-7) of more than one byte, as ranges of bytes. */
static const uint8_t wide[][4][2] = {
    {{0xc2, 0xdf}, {0x80, 0xbf}},
    {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
    {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
    {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}},
};

/* The sets that bytes lo..hi make of from [n]; 0: dead ones, or too many. */
static int step_all(struct grammar_machine *m, const uint32_t *from, int n, const uint8_t range[2],
                    uint32_t *to)
{
    int n_to = 0;
    for (int i = 0; i < n; i++)
        for (int b = range[0]; b <= range[1]; b++) {
            if (b > range[0] && m->p->class_of[b] == m->p->class_of[b - 1])
                continue;
            uint32_t set = grammar_step(m, from[i], (uint8_t)b);
            int k = 0;
            while (k < n_to && to[k] != set)
                k++;
            if (set == GRAMMAR_SET_DEAD || k == SAME_MAX)
                return 0;
            to[k] = set;
            n_to = k == n_to ? n_to + 1 : n_to;
        }
    return n_to;
}

/* Plain characters of one byte. */
static const uint8_t narrow[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7e}};

/* The one set that every plain character makes of a set, or DEAD. */
static uint32_t find_plain(struct grammar_machine *m, uint32_t set)
{
    uint32_t a[SAME_MAX], b[SAME_MAX], same = GRAMMAR_SET_UNKNOWN;
    for (size_t i = 0; i < PI_LEN(narrow); i++) {
        if (step_all(m, &set, 1, narrow[i], a) != 1 || (same != 0 && a[0] != same))
            return GRAMMAR_SET_DEAD;
        same = a[0];
    }
    for (size_t i = 0; i < PI_LEN(wide); i++) {
        int n = step_all(m, &set, 1, wide[i][0], a);
        for (int k = 1; k < 4 && wide[i][k][0] != 0; k++) {
            n = step_all(m, a, n, wide[i][k], b);
            memcpy(a, b, sizeof(a));
        }
        if (n != 1 || a[0] != same)
            return GRAMMAR_SET_DEAD;
    }
    return same;
}

/* Whether no plain character may follow a set. */
static bool is_plain_end(struct grammar_machine *m, uint32_t set)
{
    for (size_t i = 0; i < PI_LEN(narrow); i++)
        for (int b = narrow[i][0]; b <= narrow[i][1]; b++)
            if (grammar_step(m, set, (uint8_t)b) != GRAMMAR_SET_DEAD)
                return false;
    for (int b = 0xc2; b <= 0xf4; b++)
        if (grammar_step(m, set, (uint8_t)b) != GRAMMAR_SET_DEAD)
            return false;
    return true;
}

/* How many plain characters may follow, whichever they are, and the sets run [n + 1] behind 0, 1...
   of them. -1: which ones may follow cannot be said so simply. */
static int32_t plain_run(struct grammar_machine *m, uint32_t set, uint32_t *run)
{
    int32_t n = 0;
    run[0] = set;
    while (n < VOCAB_TREE_PLAIN_MAX) {
        if (m->set[set].plain == GRAMMAR_SET_UNKNOWN) {
            uint32_t plain = find_plain(m, set);
            m->set[set].plain = plain;
        }
        if (m->set[set].plain == GRAMMAR_SET_DEAD)
            return is_plain_end(m, set) ? n : -1;
        set = m->set[set].plain;
        run[++n] = set;
    }
    return n;
}

/* ---- walks ---- */

static void add_exit(struct grammar_machine *m, uint32_t node, uint32_t set)
{
    if (m->n_exit == m->cap_exit) {
        uint32_t cap = m->cap_exit > 0 ? 2 * m->cap_exit : 64;
        struct grammar_exit *exit = pi_mem_grow(PI_MEM_OTHER, m->exit, cap, sizeof(*exit));
        if (exit == NULL) {
            fail(m, PITH_NOMEM);
            return;
        }
        m->exit = exit;
        m->cap_exit = cap;
    }
    m->exit[m->n_exit++] = (struct grammar_exit){node, set};
}

/* Nodes begin to end - 1 of the tree, which are neighbours or below such, from a set. */
static void walk(struct grammar_machine *m, uint32_t begin, uint32_t end, uint32_t set)
{
    const struct vocab_tree *t = m->tree;
    uint32_t *path = m->path; /* path[d] and ends[d] of depth d */
    uint32_t depth = 0, i = begin;
    uint32_t *ends = m->path + t->max_depth + 1;
    path[0] = set;
    ends[0] = end;
    while (i < end) {
        while (i >= ends[depth])
            depth--;
        uint32_t next = grammar_step(m, path[depth], t->byte[i]);
        if (next == GRAMMAR_SET_DEAD) {
            i = t->end[i];
            continue;
        }
        for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++)
            m->scratch[t->token[k] / 64] |= UINT64_C(1) << (t->token[k] % 64);
        if (t->end[i] > i + 1) {
            if (m->set[next].leaves)
                add_exit(m, i, next);
            path[++depth] = next;
            ends[depth] = t->end[i];
        }
        i++;
    }
}

/* ---- entries ---- */

static void forget(struct grammar_machine *m)
{
    for (uint32_t i = 0; i < m->n_entry; i++) {
        pi_mem_free(m->entry[i].bits);
        pi_mem_free(m->entry[i].few);
        pi_mem_free(m->entry[i].exit);
    }
    for (uint32_t i = 0; i < m->n_set; i++)
        m->set[i].entry = 0;
    m->n_entry = 0;
    m->mask_bytes = 0;
    grammar_table_free(&m->entries);
}

void grammar_entries_free(struct grammar_machine *m)
{
    forget(m);
}

/* Bits that are set: sums of neighbours, then of sums (Warren, Hacker's Delight, section 5-1). */
static int32_t count(const uint64_t *bits, int32_t n_word)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_word; i++) {
        uint64_t x = bits[i] - (bits[i] >> 1 & 0x5555555555555555u);
        x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
        x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
        n += (int32_t)(x * 0x0101010101010101u >> 56);
    }
    return n;
}

static bool keep_tokens(struct grammar_machine *m, struct grammar_entry *e)
{
    int32_t n_word = m->tree->n_word, n = count(m->scratch, n_word), k = 0;
    if (n > n_word) { /* a list of ids would take more than half of the bits */
        e->bits = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_word, sizeof(*e->bits));
        if (e->bits == NULL)
            return false;
        memcpy(e->bits, m->scratch, (size_t)n_word * sizeof(*e->bits));
        m->mask_bytes += (size_t)n_word * sizeof(*e->bits);
        return true;
    }
    e->few = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n, sizeof(*e->few));
    if (e->few == NULL)
        return false;
    for (int32_t i = 0; i < n_word; i++)
        for (uint64_t w = m->scratch[i], bit = 0; w != 0; w >>= 1, bit++)
            if ((w & 1) != 0)
                e->few[k++] = 64 * i + (int32_t)bit;
    e->n_few = n;
    m->mask_bytes += (size_t)n * sizeof(*e->few);
    return true;
}

/* Keeps what walks have left in scratch and exit. Returns its number + 1; 0: no memory. */
static uint32_t keep_entry(struct grammar_machine *m)
{
    struct grammar_entry e = {.n_exit = m->n_exit};
    if (m->n_entry == m->cap_entry) {
        uint32_t cap = m->cap_entry > 0 ? 2 * m->cap_entry : 64;
        struct grammar_entry *grown = pi_mem_grow(PI_MEM_OTHER, m->entry, cap, sizeof(*grown));
        if (grown == NULL) {
            fail(m, PITH_NOMEM);
            return 0;
        }
        m->entry = grown;
        m->cap_entry = cap;
    }
    e.exit = pi_mem_alloc_n(PI_MEM_OTHER, e.n_exit, sizeof(*e.exit));
    if (e.exit == NULL || !keep_tokens(m, &e)) {
        pi_mem_free(e.exit);
        fail(m, PITH_NOMEM);
        return 0;
    }
    if (e.n_exit > 0)
        memcpy(e.exit, m->exit, e.n_exit * sizeof(*e.exit));
    m->mask_bytes += e.n_exit * sizeof(*e.exit) + sizeof(e);
    m->entry[m->n_entry++] = e;
    return m->n_entry;
}

static void start_entry(struct grammar_machine *m)
{
    memset(m->scratch, 0, (size_t)m->tree->n_word * sizeof(*m->scratch));
    m->n_exit = 0;
}

static void walk_part(struct grammar_machine *m, int32_t part, uint32_t set)
{
    if (m->status == PITH_OK)
        walk(m, m->tree->part[part].begin, m->tree->part[part].end, set);
}

static uint32_t make_entry(struct grammar_machine *m, uint32_t set)
{
    uint32_t run[VOCAB_TREE_PLAIN_MAX + 1];
    int32_t n = plain_run(m, set, run), n_word = m->tree->n_word;
    start_entry(m);
    for (int32_t k = 0; k <= n; k++)
        walk_part(m, VOCAB_TREE_BEHIND + k, run[k]);
    for (int32_t i = 0; n > 0 && i < n_word; i++)
        m->scratch[i] |= m->tree->plain[(size_t)n * n_word + i];
    if (n < 0) {
        walk_part(m, VOCAB_TREE_PLAIN, set);
        walk_part(m, VOCAB_TREE_MIXED, set);
    }
    if (n < 0 || n == VOCAB_TREE_PLAIN_MAX)
        walk_part(m, VOCAB_TREE_LONG, set);
    return m->status == PITH_OK ? keep_entry(m) : 0;
}

/* Behind the exits of an entry, where the text returns to ret. */
static uint32_t make_behind(struct grammar_machine *m, uint32_t entry, uint32_t ret)
{
    start_entry(m);
    for (uint32_t i = 0; i < m->entry[entry].n_exit && m->status == PITH_OK; i++) {
        struct grammar_exit exit = m->entry[entry].exit[i];
        uint32_t set = grammar_join(m, exit.set, ret);
        if (m->set[set].leaves)
            add_exit(m, exit.node, set);
        if (m->status == PITH_OK && m->set[set].n > 0)
            walk(m, exit.node + 1, m->tree->end[exit.node], set);
    }
    return m->status == PITH_OK ? keep_entry(m) : 0;
}

static void put(const struct grammar_machine *m, const struct grammar_entry *e, uint64_t *bits)
{
    for (int32_t i = 0; e->bits != NULL && i < m->tree->n_word; i++)
        bits[i] |= e->bits[i];
    for (int32_t i = 0; i < e->n_few; i++)
        bits[e->few[i] / 64] |= UINT64_C(1) << (e->few[i] % 64);
}

pith_status grammar_tokens(struct grammar_machine *m, uint32_t set, const uint32_t *stack,
                           uint32_t n_stack, uint64_t *bits)
{
    m->work = 0;
    if (m->mask_bytes > MASK_BYTES_MAX)
        forget(m);
    if (m->set[set].entry == 0) {
        uint32_t made = make_entry(m, set);
        m->set[set].entry = made;
    }
    uint32_t entry = m->set[set].entry;
    for (; entry != 0; n_stack--) {
        put(m, &m->entry[entry - 1], bits);
        if (m->entry[entry - 1].n_exit == 0 || n_stack == 0)
            break;
        uint32_t ret = stack[n_stack - 1];
        uint32_t *at = grammar_table_at(&m->entries, ((uint64_t)entry << 32 | ret) + 1);
        if (at == NULL)
            return fail(m, PITH_NOMEM);
        if (*at == 0)
            *at = make_behind(m, entry - 1, ret);
        entry = *at;
    }
    return m->status;
}
