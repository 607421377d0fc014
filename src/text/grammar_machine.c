/*
 * grammar_machine.c - sets of threads and what bytes make of them, each made once. It knows neither
 * tokens nor texts.
 *
 * Invariant: a set's threads are sorted and without equals, so that equal sets have one number; set
 * 1 has no threads and does not leave. After a failure everything is that set.
 */
#include "text/grammar_machine.h"

#include <stdlib.h>

#include "base/mem.h"

#define MOVE_UNKNOWN 0xff
#define THREAD_MAX (1u << 16) /* of one set: more is a grammar that is too ambiguous */
#define WORK_MAX 2000000u     /* threads followed for one mask: 0.2 s */
#define BYTES_MAX ((size_t)512 << 20)

/* ---- tables ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static bool table_grow(struct grammar_table *t)
{
    uint32_t size = t->key == NULL ? 64 : 2 * (t->mask + 1);
    uint64_t *key = pi_mem_alloc_n(PI_MEM_OTHER, size, sizeof(*key));
    uint32_t *value = pi_mem_alloc_n(PI_MEM_OTHER, size, sizeof(*value));
    if (key == NULL || value == NULL) {
        pi_mem_free(key);
        pi_mem_free(value);
        return false;
    }
    for (uint32_t i = 0; t->key != NULL && i <= t->mask; i++) {
        if (t->key[i] == 0)
            continue;
        uint32_t at = (uint32_t)mix(t->key[i]) & (size - 1);
        while (key[at] != 0)
            at = (at + 1) & (size - 1);
        key[at] = t->key[i];
        value[at] = t->value[i];
    }
    pi_mem_free(t->key);
    pi_mem_free(t->value);
    t->key = key;
    t->value = value;
    t->mask = size - 1;
    return true;
}

uint32_t *grammar_table_at(struct grammar_table *t, uint64_t key)
{
    if ((t->key == NULL || t->n >= (t->mask + 1) / 2) && !table_grow(t))
        return NULL;
    uint32_t at = (uint32_t)mix(key) & t->mask;
    while (t->key[at] != 0 && t->key[at] != key)
        at = (at + 1) & t->mask;
    if (t->key[at] == 0) {
        t->key[at] = key;
        t->n++;
    }
    return &t->value[at];
}

void grammar_table_free(struct grammar_table *t)
{
    pi_mem_free(t->key);
    pi_mem_free(t->value);
    *t = (struct grammar_table){0};
}

void grammar_table_clear(struct grammar_table *t)
{
    if (t->n > 256) { /* do not clear a large one for few */
        grammar_table_free(t);
        return;
    }
    if (t->n > 0) {
        memset(t->key, 0, ((size_t)t->mask + 1) * sizeof(*t->key));
        memset(t->value, 0, ((size_t)t->mask + 1) * sizeof(*t->value));
    }
    t->n = 0;
}

/* ---- failures and room ---- */

static uint32_t fail(struct grammar_machine *m, pith_status status)
{
    if (m->status == PITH_OK)
        m->status = status;
    return GRAMMAR_SET_DEAD;
}

/* Room for one more element of a list; false: no memory. */
static bool reserve(struct grammar_machine *m, void **list, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    uint32_t more = *cap > 0 ? 2 * *cap : 64;
    if (m->bytes + more * size > BYTES_MAX) {
        fail(m, PITH_UNSUPPORTED);
        return false;
    }
    void *grown = pi_mem_grow(PI_MEM_OTHER, *list, more, size);
    if (grown == NULL) {
        fail(m, PITH_NOMEM);
        return false;
    }
    m->bytes += (more - *cap) * size;
    *list = grown;
    *cap = more;
    return true;
}

/* ---- frames ---- */

static uint32_t push_frame(struct grammar_machine *m, uint32_t ret, uint32_t parent)
{
    uint32_t *at = grammar_table_at(&m->frames, ((uint64_t)ret << 32 | parent) + 1);
    if (at == NULL) {
        fail(m, PITH_NOMEM);
        return 0;
    }
    if (*at == 0) {
        if (!reserve(m, (void **)&m->frame, m->n_frame, &m->cap_frame, sizeof(*m->frame)))
            return 0;
        m->frame[m->n_frame] = (struct grammar_frame){ret, parent, m->frame[parent].depth + 1};
        *at = m->n_frame++;
    }
    return *at;
}

/* A frame with another floor: its part above `from` on top of `to`. */
static uint32_t rebase(struct grammar_machine *m, uint32_t frame, uint32_t from, uint32_t to)
{
    uint32_t ret[64], n = 0;
    uint32_t depth = m->frame[frame].depth - m->frame[from].depth;
    while (depth > 0) { /* from the bottom, 64 at a time */
        uint32_t at = frame;
        n = depth < 64 ? depth : 64;
        for (uint32_t i = 0; i < depth - n; i++)
            at = m->frame[at].parent;
        for (uint32_t i = 0; i < n; i++, at = m->frame[at].parent)
            ret[i] = m->frame[at].ret;
        for (uint32_t i = n; i-- > 0;)
            to = push_frame(m, ret[i], to);
        depth -= n;
    }
    return to;
}

/* ---- sets ---- */

static void add_todo(struct grammar_machine *m, uint32_t node, uint32_t frame)
{
    if (!reserve(m, (void **)&m->todo, m->n_todo, &m->cap_todo, sizeof(*m->todo)))
        return;
    m->todo[m->n_todo++] = (struct grammar_thread){node, frame};
}

static void found(struct grammar_machine *m, uint32_t node, uint32_t frame)
{
    if (m->p->node[node].b == 0) /* no edges */
        return;
    if (m->n_found >= THREAD_MAX) {
        fail(m, PITH_UNSUPPORTED);
        return;
    }
    if (reserve(m, (void **)&m->found, m->n_found, &m->cap_found, sizeof(*m->found)))
        m->found[m->n_found++] = (struct grammar_thread){node, frame};
}

/* What a node leads to without a byte. A call whose return would be an end leaves no frame. */
static void follow(struct grammar_machine *m, uint32_t node, uint32_t frame)
{
    const struct grammar_node *n = &m->p->node[node];
    switch (n->kind) {
    case GRAMMAR_NODE_END:
        if (frame == 0)
            m->found_leaves = true;
        else
            add_todo(m, m->frame[frame].ret, m->frame[frame].parent);
        break;
    case GRAMMAR_NODE_EDGES:
        found(m, node, frame);
        break;
    case GRAMMAR_NODE_SPLIT:
        add_todo(m, n->b, frame);
        add_todo(m, n->a, frame);
        break;
    case GRAMMAR_NODE_CALL:
        if (n->b != GRAMMAR_END)
            frame = push_frame(m, n->b, frame);
        add_todo(m, m->p->start[n->a], frame);
        break;
    }
}

static void close_over(struct grammar_machine *m, uint32_t node, uint32_t frame)
{
    add_todo(m, node, frame);
    while (m->n_todo > 0 && m->status == PITH_OK) {
        if (++m->work > WORK_MAX)
            fail(m, PITH_UNSUPPORTED);
        struct grammar_thread t = m->todo[--m->n_todo];
        uint32_t *seen = grammar_table_at(&m->seen, ((uint64_t)t.node << 32 | t.frame) + 1);
        if (seen == NULL)
            fail(m, PITH_NOMEM);
        else if (*seen == 0) {
            *seen = 1;
            follow(m, t.node, t.frame);
        }
    }
}

static void start_set(struct grammar_machine *m)
{
    m->n_found = m->n_todo = 0;
    m->found_leaves = false;
    grammar_table_clear(&m->seen);
}

static int by_thread(const void *left, const void *right)
{
    const struct grammar_thread *a = left, *b = right;
    if (a->frame != b->frame)
        return a->frame < b->frame ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

static uint64_t hash_found(const struct grammar_machine *m)
{
    uint64_t hash = m->found_leaves ? 0x9e3779b97f4a7c15u : 1;
    for (uint32_t i = 0; i < m->n_found; i++)
        hash = mix(hash ^ ((uint64_t)m->found[i].node << 32 | m->found[i].frame)) + i;
    return hash;
}

static bool is_found(const struct grammar_machine *m, const struct grammar_set *s)
{
    return s->n == m->n_found && s->leaves == m->found_leaves &&
           (s->n == 0 || memcmp(s->thread, m->found, s->n * sizeof(*s->thread)) == 0);
}

static bool grow_sets(struct grammar_machine *m)
{
    size_t row = m->p->n_class * sizeof(*m->next);
    uint32_t cap = m->cap_set;
    if (m->n_set < cap)
        return true;
    if (!reserve(m, (void **)&m->set, m->n_set, &m->cap_set, sizeof(*m->set)))
        return false;
    if (m->bytes + m->cap_set * row > BYTES_MAX) {
        m->cap_set = cap;
        fail(m, PITH_UNSUPPORTED);
        return false;
    }
    uint32_t *next = pi_mem_grow(PI_MEM_OTHER, m->next, m->cap_set, row);
    if (next == NULL) {
        m->cap_set = cap;
        fail(m, PITH_NOMEM);
        return false;
    }
    m->bytes += (m->cap_set - cap) * row;
    m->next = next;
    return true;
}

/* The number of the set of what was found. */
static uint32_t finish_set(struct grammar_machine *m)
{
    if (m->status != PITH_OK)
        return GRAMMAR_SET_DEAD;
    if (m->n_found > 1)
        qsort(m->found, m->n_found, sizeof(*m->found), by_thread);
    uint64_t key = hash_found(m);
    for (;; key++) { /* of another set with the same hash the next key */
        uint32_t *at = grammar_table_at(&m->sets, key != 0 ? key : 1);
        if (at == NULL)
            return fail(m, PITH_NOMEM);
        if (*at != 0 && is_found(m, &m->set[*at]))
            return *at;
        if (*at != 0)
            continue;
        if (!grow_sets(m))
            return GRAMMAR_SET_DEAD;
        size_t size = m->n_found * sizeof(struct grammar_thread);
        struct grammar_set s = {.n = m->n_found, .leaves = m->found_leaves, .n_move = MOVE_UNKNOWN};
        if (s.n > 0 && (s.thread = pi_mem_alloc(PI_MEM_OTHER, size)) == NULL)
            return fail(m, PITH_NOMEM);
        if (s.n > 0)
            memcpy(s.thread, m->found, size);
        m->bytes += size;
        m->set[m->n_set] = s;
        return *at = m->n_set++;
    }
}

uint32_t grammar_begin(struct grammar_machine *m)
{
    start_set(m);
    close_over(m, m->p->start[m->p->root], 0);
    return finish_set(m);
}

uint32_t grammar_step_slow(struct grammar_machine *m, uint32_t set, uint32_t class_of)
{
    uint8_t byte = m->p->byte_of[class_of];
    start_set(m);
    for (uint32_t i = 0; i < m->set[set].n && m->status == PITH_OK; i++) {
        struct grammar_thread t = m->set[set].thread[i];
        const struct grammar_node *n = &m->p->node[t.node];
        for (uint32_t k = n->a; k < n->a + n->b; k++)
            if (m->p->edge[k].lo <= byte && byte <= m->p->edge[k].hi)
                close_over(m, m->p->edge[k].next, t.frame);
    }
    uint32_t next = finish_set(m);
    m->next[(size_t)set * m->p->n_class + class_of] = next;
    return next;
}

uint32_t grammar_join(struct grammar_machine *m, uint32_t set, uint32_t ret)
{
    uint32_t *at = grammar_table_at(&m->joins, ((uint64_t)set << 32 | ret) + 1);
    if (at == NULL)
        return fail(m, PITH_NOMEM);
    if (*at != 0)
        return *at;
    start_set(m);
    uint32_t floor = m->set[set].n > 0 ? push_frame(m, ret, 0) : 0;
    for (uint32_t i = 0; i < m->set[set].n && m->status == PITH_OK; i++) {
        struct grammar_thread t = m->set[set].thread[i];
        close_over(m, t.node, rebase(m, t.frame, 0, floor));
    }
    close_over(m, ret, 0);
    return *at = finish_set(m);
}

/* ---- settling ---- */

static uint32_t common_frame(const struct grammar_machine *m, uint32_t a, uint32_t b)
{
    while (m->frame[a].depth > m->frame[b].depth)
        a = m->frame[a].parent;
    while (m->frame[b].depth > m->frame[a].depth)
        b = m->frame[b].parent;
    while (a != b) {
        a = m->frame[a].parent;
        b = m->frame[b].parent;
    }
    return a;
}

static void find_settled(struct grammar_machine *m, uint32_t set)
{
    struct grammar_set *s = &m->set[set];
    uint32_t frame = s->leaves || s->n == 0 ? 0 : s->thread[0].frame;
    for (uint32_t i = 1; i < s->n && frame != 0; i++)
        frame = common_frame(m, frame, s->thread[i].frame);
    while (m->frame[frame].depth > GRAMMAR_MOVE_MAX)
        frame = m->frame[frame].parent;
    s->n_move = (uint8_t)m->frame[frame].depth;
    s->move_frame = frame;
    s->settled = set;
    if (frame == 0)
        return;
    start_set(m);
    for (uint32_t i = 0; i < m->set[set].n && m->status == PITH_OK; i++) {
        struct grammar_thread t = m->set[set].thread[i];
        close_over(m, t.node, rebase(m, t.frame, frame, 0));
    }
    uint32_t settled = finish_set(m);
    m->set[set].settled = settled;
}

uint32_t grammar_settle(struct grammar_machine *m, uint32_t set, uint32_t *out, uint32_t cap,
                        uint32_t *n)
{
    if (m->set[set].n_move == MOVE_UNKNOWN)
        find_settled(m, set);
    const struct grammar_set *s = &m->set[set];
    *n = s->n_move;
    if (s->n_move > cap)
        return fail(m, PITH_INTERNAL);
    for (uint32_t i = s->n_move, frame = s->move_frame; i-- > 0; frame = m->frame[frame].parent)
        out[i] = m->frame[frame].ret;
    return s->settled;
}

/* ---- all of it ---- */

pith_status grammar_machine_init(struct grammar_machine *m, const struct grammar_program *p,
                                 const struct vocab_tree *tree)
{
    *m = (struct grammar_machine){.p = p, .tree = tree};
    m->path = pi_mem_alloc_n(PI_MEM_OTHER, 2 * ((size_t)tree->max_depth + 1), sizeof(*m->path));
    m->scratch = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)tree->n_word, sizeof(*m->scratch));
    if (m->path == NULL || m->scratch == NULL)
        return PITH_NOMEM;
    if (!reserve(m, (void **)&m->frame, 0, &m->cap_frame, sizeof(*m->frame)) || !grow_sets(m))
        return m->status;
    m->n_frame = 1; /* the floor */
    m->n_set = 1;   /* none is unknown */
    start_set(m);
    uint32_t dead = finish_set(m);
    assert(dead == GRAMMAR_SET_DEAD);
    for (uint32_t c = 0; c < p->n_class; c++)
        m->next[dead * p->n_class + c] = dead;
    return m->status;
}

void grammar_machine_free(struct grammar_machine *m)
{
    grammar_entries_free(m);
    for (uint32_t i = 0; i < m->n_set; i++)
        pi_mem_free(m->set[i].thread);
    pi_mem_free(m->set);
    pi_mem_free(m->next);
    pi_mem_free(m->frame);
    pi_mem_free(m->entry);
    pi_mem_free(m->found);
    pi_mem_free(m->todo);
    pi_mem_free(m->path);
    pi_mem_free(m->scratch);
    pi_mem_free(m->exit);
    grammar_table_free(&m->frames);
    grammar_table_free(&m->sets);
    grammar_table_free(&m->joins);
    grammar_table_free(&m->entries);
    grammar_table_free(&m->seen);
    *m = (struct grammar_machine){0};
}
