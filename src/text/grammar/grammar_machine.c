/*
 * grammar_machine.c - sets of threads and what bytes make of them, each made once. It knows neither
 * tokens nor texts.
 *
 * Invariant: a set's threads are sorted and without equals, so that equal sets have one number; set
 * 1 has no threads and does not leave. After a failure everything is that set.
 */
#include "text/grammar/grammar_machine.h"

#include <stdlib.h>

#include "base/mem.h"

#define THREAD_MAX (1u << 16) /* of one set: more is a grammar that is too ambiguous */
#define WAYS_COPIED 4         /* of a frame that others go on as; of more a way leads there */
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

static int by_way(const void *left, const void *right)
{
    const struct grammar_way *a = left, *b = right;
    if (a->parent != b->parent)
        return a->parent < b->parent ? -1 : 1;
    return (a->ret > b->ret) - (a->ret < b->ret);
}

static void start_frame(struct grammar_machine *m)
{
    m->n_build = 0;
    m->build_floor = false;
}

static void add_way(struct grammar_machine *m, uint32_t ret, uint32_t parent)
{
    if (reserve(m, (void **)&m->build, m->n_build, &m->cap_build, sizeof(*m->build)))
        m->build[m->n_build++] = (struct grammar_way){ret, parent};
}

/* All that a frame has: its ways, or of many one that leads to them. */
static void add_frame(struct grammar_machine *m, uint32_t frame)
{
    struct grammar_frame f = m->frame[frame];
    m->build_floor = m->build_floor || f.floor;
    if (f.n > WAYS_COPIED)
        add_way(m, GRAMMAR_END, frame);
    for (uint32_t i = 0; i < f.n && f.n <= WAYS_COPIED; i++)
        add_way(m, m->way[f.first + i].ret, m->way[f.first + i].parent);
}

static void reach(struct grammar_machine *m, uint32_t frame);

/* Of ways that lead to a frame, those to which another one leads as well are left out. */
static void prune(struct grammar_machine *m)
{
    uint32_t n = 0;
    m->n_reach = 0;
    grammar_table_clear(&m->reached);
    for (uint32_t i = m->n_build; i-- > 0;) { /* younger ones lead to older ones */
        struct grammar_way w = m->build[i];
        uint32_t from = m->n_reach;
        if (w.ret != GRAMMAR_END)
            continue;
        reach(m, w.parent);
        if (m->n_reach == from)
            m->build[i].ret = GRAMMAR_DEAD;
        for (; from < m->n_reach && m->status == PITH_OK; from++) {
            struct grammar_frame f = m->frame[m->reach[from].frame];
            for (uint32_t k = 0; k < f.n; k++)
                if (m->way[f.first + k].ret == GRAMMAR_END)
                    reach(m, m->way[f.first + k].parent);
        }
    }
    for (uint32_t i = 0; i < m->n_build; i++)
        if (m->build[i].ret != GRAMMAR_DEAD)
            m->build[n++] = m->build[i];
    m->n_build = n;
}

static bool is_built(const struct grammar_machine *m, const struct grammar_frame *f)
{
    return f->n == m->n_build && f->floor == m->build_floor &&
           (f->n == 0 || memcmp(m->way + f->first, m->build, f->n * sizeof(*m->way)) == 0);
}

/* Sorts what was built, without equals; returns a key of it. */
static uint64_t settle_build(struct grammar_machine *m, bool may_prune)
{
    uint32_t n = 0;
    uint64_t hash = m->build_floor ? 0x9e3779b97f4a7c15u : 1;
    if (m->n_build > 1)
        qsort(m->build, m->n_build, sizeof(*m->build), by_way);
    for (uint32_t i = 0; i < m->n_build; i++)
        if (i == 0 || by_way(&m->build[i], &m->build[n - 1]) != 0)
            m->build[n++] = m->build[i];
    m->n_build = n;
    if (may_prune && n > 1)
        prune(m);
    n = m->n_build;
    m->work += n;
    for (uint32_t i = 0; i < n; i++)
        hash = mix(hash ^ ((uint64_t)m->build[i].ret << 32 | m->build[i].parent)) + i;
    return hash != 0 ? hash : 1;
}

/* The number of the frame that was built. */
static uint32_t finish_frame(struct grammar_machine *m, bool may_prune)
{
    if (m->n_build == 0 || m->status != PITH_OK) /* nothing but the floor */
        return 0;
    for (uint64_t key = settle_build(m, may_prune);;
         key++) { /* of another one with the same hash the next */
        uint32_t *at = grammar_table_at(&m->frames, key != 0 ? key : 1);
        if (at == NULL)
            return fail(m, PITH_NOMEM), 0;
        if (*at != 0 && is_built(m, &m->frame[*at]))
            return *at;
        if (*at != 0)
            continue;
        if (!reserve(m, (void **)&m->frame, m->n_frame, &m->cap_frame, sizeof(*m->frame)))
            return 0;
        m->frame[m->n_frame] = (struct grammar_frame){m->n_way, m->n_build, m->build_floor};
        for (uint32_t i = 0; i < m->n_build; i++) {
            if (!reserve(m, (void **)&m->way, m->n_way, &m->cap_way, sizeof(*m->way)))
                return 0;
            m->way[m->n_way++] = m->build[i];
        }
        return *at = m->n_frame++;
    }
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

/* A call waits until all calls of its rule at this place are known. Behind a rule that may be empty
   the walk goes on at once, so that no call comes too late. */
static void add_call(struct grammar_machine *m, const struct grammar_node *n, uint32_t frame)
{
    if (!reserve(m, (void **)&m->call, m->n_call, &m->cap_call, sizeof(*m->call)))
        return;
    m->call[m->n_call++] = (struct grammar_call){n->a, {n->b, frame}};
    if (m->p->empty[n->a])
        add_todo(m, n->b, frame);
}

static void return_by(struct grammar_machine *m, uint32_t frame)
{
    struct grammar_frame f = m->frame[frame];
    m->found_leaves = m->found_leaves || f.floor;
    m->work += f.n;
    for (uint32_t i = 0; i < f.n; i++)
        add_todo(m, m->way[f.first + i].ret, m->way[f.first + i].parent);
}

/* Adds the nodes that a node leads to without a byte. */
static void follow(struct grammar_machine *m, uint32_t node, uint32_t frame)
{
    const struct grammar_node *n = &m->p->node[node];
    switch (n->kind) {
    case GRAMMAR_NODE_END:
        return_by(m, frame);
        break;
    case GRAMMAR_NODE_EDGES:
        found(m, node, frame);
        break;
    case GRAMMAR_NODE_SPLIT:
        add_todo(m, n->b, frame);
        add_todo(m, n->a, frame);
        break;
    case GRAMMAR_NODE_CALL:
        add_call(m, n, frame);
        break;
    }
}

static void follow_all(struct grammar_machine *m)
{
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

/* The rule that waits and that no other one that waits begins with. */
static uint32_t first_rule(const struct grammar_machine *m)
{
    uint32_t best = m->call[0].rule;
    for (uint32_t i = 1; i < m->n_call; i++)
        if (m->p->rank[m->call[i].rule] < m->p->rank[best])
            best = m->call[i].rule;
    return best;
}

/* Begins a rule once, for all its callers here. A call whose return would be an end adds nothing of
   its own. */
static void begin_rule(struct grammar_machine *m, uint32_t rule)
{
    uint32_t left = 0;
    start_frame(m);
    for (uint32_t i = 0; i < m->n_call; i++) {
        struct grammar_call c = m->call[i];
        if (c.rule != rule)
            m->call[left++] = c;
        else if (c.way.ret == GRAMMAR_END)
            add_frame(m, c.way.parent);
        else
            add_way(m, c.way.ret, c.way.parent);
    }
    m->n_call = left;
    add_todo(m, m->p->start[rule], finish_frame(m, true));
}

/* Follows what is to be done and the calls that come of it. */
static void close_over(struct grammar_machine *m)
{
    follow_all(m);
    while (m->n_call > 0 && m->status == PITH_OK) {
        begin_rule(m, first_rule(m));
        follow_all(m);
    }
}

static void start_set(struct grammar_machine *m)
{
    m->n_found = m->n_todo = m->n_call = 0;
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

/* The number of the set of the threads that were found. */
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
        struct grammar_set s = {.n = m->n_found, .leaves = m->found_leaves};
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
    add_todo(m, m->p->start[m->p->root], 0);
    close_over(m);
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
                add_todo(m, m->p->edge[k].next, t.frame);
    }
    close_over(m);
    uint32_t next = finish_set(m);
    m->next[(size_t)set * m->p->n_class + class_of] = next;
    return next;
}

/* ---- other floors ---- */

static uint32_t *reached_at(struct grammar_machine *m, uint32_t frame)
{
    uint32_t *at = grammar_table_at(&m->reached, (uint64_t)frame + 1);
    if (at == NULL)
        fail(m, PITH_NOMEM);
    return at;
}

static void reach(struct grammar_machine *m, uint32_t frame)
{
    uint32_t *at = reached_at(m, frame);
    if (at == NULL || *at != 0 ||
        !reserve(m, (void **)&m->reach, m->n_reach, &m->cap_reach, sizeof(*m->reach)))
        return;
    m->reach[m->n_reach++] = (struct grammar_reach){frame, 0};
    *at = m->n_reach;
}

static int by_frame(const void *left, const void *right)
{
    const struct grammar_reach *a = left, *b = right;
    return (a->frame > b->frame) - (a->frame < b->frame);
}

/* All frames below a set. A frame's parents are older, so ascending numbers have parents first. */
static void reach_all(struct grammar_machine *m, uint32_t set)
{
    m->n_reach = 0;
    grammar_table_clear(&m->reached);
    for (uint32_t i = 0; i < m->set[set].n; i++)
        reach(m, m->set[set].thread[i].frame);
    for (uint32_t i = 0; i < m->n_reach && m->status == PITH_OK; i++) {
        struct grammar_frame f = m->frame[m->reach[i].frame];
        m->work += f.n;
        for (uint32_t k = 0; k < f.n; k++)
            reach(m, m->way[f.first + k].parent);
    }
    if (m->status != PITH_OK)
        return;
    if (m->n_reach > 1)
        qsort(m->reach, m->n_reach, sizeof(*m->reach), by_frame);
    for (uint32_t i = 0; i < m->n_reach; i++)
        *reached_at(m, m->reach[i].frame) = i + 1;
}

static uint32_t moved(struct grammar_machine *m, uint32_t frame)
{
    const uint32_t *at = reached_at(m, frame);
    return at != NULL && *at != 0 ? m->reach[*at - 1].moved : 0;
}

/* Threads of a set, on the frames that theirs became. */
static void move_threads(struct grammar_machine *m, uint32_t set)
{
    start_set(m);
    for (uint32_t i = 0; i < m->set[set].n && m->status == PITH_OK; i++) {
        struct grammar_thread t = m->set[set].thread[i];
        add_todo(m, t.node, moved(m, t.frame));
    }
}

/* Frames with another one in place of the floor. */
static void put_on(struct grammar_machine *m, uint32_t top)
{
    for (uint32_t i = 0; i < m->n_reach && m->status == PITH_OK; i++) {
        struct grammar_frame f = m->frame[m->reach[i].frame];
        start_frame(m);
        for (uint32_t k = 0; k < f.n; k++) {
            struct grammar_way w = m->way[f.first + k];
            add_way(m, w.ret, moved(m, w.parent));
        }
        if (f.floor)
            add_frame(m, top);
        m->reach[i].moved = finish_frame(m, false);
    }
}

uint32_t grammar_join(struct grammar_machine *m, uint32_t set, uint32_t top)
{
    uint32_t *at = grammar_table_at(&m->joins, ((uint64_t)set << 32 | top) + 1);
    if (at == NULL)
        return fail(m, PITH_NOMEM);
    if (*at != 0)
        return *at;
    reach_all(m, set);
    put_on(m, top);
    move_threads(m, set);
    return_by(m, top);
    close_over(m);
    return *at = finish_set(m);
}

/* ---- settling ---- */

/* A way that leads to the floor: its node is the last of a stack. */
static bool is_last(const struct grammar_machine *m, struct grammar_way w)
{
    return w.ret != GRAMMAR_END && m->frame[w.parent].floor;
}

/* Builds a frame of a frame's last ways. False: it has none. */
static bool build_last(struct grammar_machine *m, uint32_t frame)
{
    struct grammar_frame f = m->frame[frame];
    start_frame(m);
    for (uint32_t k = 0; k < f.n; k++)
        if (is_last(m, m->way[f.first + k]))
            add_way(m, m->way[f.first + k].ret, 0);
    return m->n_build > 0;
}

/* The frame that all stacks of a set end with, whatever stands before; 0: there is none. */
static uint32_t find_last(struct grammar_machine *m, uint32_t set)
{
    uint32_t last = 0;
    if (m->set[set].leaves)
        return 0;
    for (uint32_t i = 0; i < m->set[set].n; i++)
        if (m->frame[m->set[set].thread[i].frame].floor)
            return 0;
    reach_all(m, set);
    for (uint32_t i = 0; i < m->n_reach && m->status == PITH_OK; i++) {
        if (!build_last(m, m->reach[i].frame))
            continue;
        uint32_t frame = finish_frame(m, false);
        if (last != 0 && frame != last)
            return 0;
        last = frame;
    }
    return last;
}

/* Frames without their last ways, behind which the floor is now. */
static void take_last(struct grammar_machine *m)
{
    for (uint32_t i = 0; i < m->n_reach && m->status == PITH_OK; i++) {
        struct grammar_frame f = m->frame[m->reach[i].frame];
        start_frame(m);
        for (uint32_t k = 0; k < f.n; k++) {
            struct grammar_way w = m->way[f.first + k];
            uint32_t parent = moved(m, w.parent);
            m->build_floor =
                m->build_floor || is_last(m, w) || (w.ret == GRAMMAR_END && m->frame[parent].floor);
            if (m->frame[w.parent].n > 0 && (w.ret != GRAMMAR_END || m->frame[parent].n > 0))
                add_way(m, w.ret, parent);
        }
        m->reach[i].moved = finish_frame(m, false);
    }
}

static void find_settled(struct grammar_machine *m, uint32_t set)
{
    uint32_t last = find_last(m, set), settled = set;
    if (last != 0) {
        take_last(m);
        move_threads(m, set);
        close_over(m);
        settled = finish_set(m);
    }
    m->set[set].is_settled = true;
    m->set[set].move = last;
    m->set[set].settled = settled;
}

uint32_t grammar_settle(struct grammar_machine *m, uint32_t set, uint32_t *out, uint32_t cap,
                        uint32_t *n)
{
    for (*n = 0; *n < cap; set = m->set[set].settled) {
        if (!m->set[set].is_settled)
            find_settled(m, set);
        if (m->status != PITH_OK)
            return GRAMMAR_SET_DEAD;
        if (m->set[set].move == 0)
            break;
        out[(*n)++] = m->set[set].move;
    }
    return set;
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
    m->frame[0] = (struct grammar_frame){.floor = true};
    m->n_frame = 1;
    m->n_set = 1; /* none is unknown */
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
    pi_mem_free(m->way);
    pi_mem_free(m->call);
    pi_mem_free(m->build);
    pi_mem_free(m->reach);
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
    grammar_table_free(&m->reached);
    *m = (struct grammar_machine){0};
}
