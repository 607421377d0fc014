/* The cache of prefixes against a plain model that keeps texts in a list. */
#include "prefix_rig.h"

#define SEQ_MAX 8
#define MODEL_TEXT (6 * LEN)
#define MODEL_NODES 1000
#define MODEL_OPS 10000

struct plain_node {
    int32_t token[MODEL_TEXT];
    int32_t n; /* tokens, with all those before */
    int32_t page;
    int64_t tick;
};

struct plain_seq {
    struct kv_seq *seq; /* NULL: none */
    int32_t token[MODEL_TEXT];
    int32_t n;
    int32_t page[MODEL_TEXT / LEN]; /* numbers of the model's own */
};

struct plain {
    struct plain_node node[MODEL_NODES];
    int32_t n_node;
    struct plain_seq seq[SEQ_MAX];
    int32_t n_page; /* numbers given out */
    int64_t tick;
    int64_t n_dropped;
    uint64_t rng;
};

static struct plain_node *plain_find(struct plain *m, const int32_t *tokens, int32_t n)
{
    for (int32_t i = 0; i < m->n_node; i++)
        if (m->node[i].n == n && memcmp(m->node[i].token, tokens, (size_t)n * 4) == 0)
            return &m->node[i];
    return NULL;
}

/* The tokens of the longest text that is there, of at most n. */
static int32_t plain_longest(struct plain *m, const int32_t *tokens, int32_t n)
{
    int32_t found = 0;
    while (found + LEN <= n && plain_find(m, tokens, found + LEN) != NULL)
        found += LEN;
    return found;
}

static void plain_use(struct plain *m, const int32_t *tokens, int32_t n)
{
    m->tick++;
    for (int32_t i = LEN; i <= n; i += LEN)
        plain_find(m, tokens, i)->tick = m->tick;
}

static int32_t pages_of(int32_t n)
{
    return (n + LEN - 1) / LEN;
}

static bool plain_in_seq(const struct plain *m, int32_t page, int32_t but)
{
    for (int32_t s = 0; s < SEQ_MAX; s++)
        for (int32_t i = 0; m->seq[s].seq != NULL && i < pages_of(m->seq[s].n); i++)
            if (m->seq[s].page[i] == page && s != but)
                return true;
    return false;
}

static bool plain_in_node(const struct plain *m, int32_t page)
{
    for (int32_t i = 0; i < m->n_node; i++)
        if (m->node[i].page == page)
            return true;
    return false;
}

/* The one that goes next; NULL: none. */
static struct plain_node *plain_victim(struct plain *m)
{
    struct plain_node *victim = NULL;
    for (int32_t i = 0; i < m->n_node; i++) {
        struct plain_node *node = &m->node[i];
        bool leaf = true;
        for (int32_t k = 0; k < m->n_node && leaf; k++)
            leaf = m->node[k].n <= node->n ||
                   memcmp(m->node[k].token, node->token, (size_t)node->n * 4) != 0;
        if (!leaf || plain_in_seq(m, node->page, -1))
            continue;
        assert_true(victim == NULL || victim->tick != node->tick);
        if (victim == NULL || node->tick < victim->tick)
            victim = node;
    }
    return victim;
}

static int64_t plain_reclaim(struct plain *m, int64_t n_block)
{
    int64_t n = 0;
    for (; n < n_block; n++) {
        struct plain_node *victim = plain_victim(m);
        if (victim == NULL)
            break;
        *victim = m->node[--m->n_node];
    }
    return n;
}

/* Blocks that could go, of a copy. */
static int64_t plain_unused(const struct plain *m)
{
    static struct plain copy;
    copy = *m;
    return plain_reclaim(&copy, INT64_MAX);
}

static int64_t plain_used_pages(const struct plain *m)
{
    int64_t n = 0;
    for (int32_t page = 0; page < m->n_page; page++)
        n += plain_in_seq(m, page, -1) || plain_in_node(m, page);
    return n;
}

/* A text out of few, which begin alike. */
static void plain_text(struct plain *m, int32_t *tokens)
{
    for (int32_t i = 0; i < MODEL_TEXT; i++)
        tokens[i] = i % LEN == (i / LEN * 5) % LEN ? (int32_t)rng_below(&m->rng, 3) : i;
}

/* Another text after the sequence's tokens. */
static void new_rest(struct plain *m, struct plain_seq *p)
{
    int32_t text[MODEL_TEXT];
    plain_text(m, text);
    memcpy(p->token + p->n, text + p->n, (size_t)(MODEL_TEXT - p->n) * 4);
}

/* Frees memory for n more blocks where it is short. */
static void make_room(struct plain *m, struct rig *r, int32_t n)
{
    int64_t block = kv_block_bytes(r->kv), lacks = n * block - kv_cache_free_bytes(r->kv);
    if (lacks <= 0)
        return;
    int64_t freed = plain_reclaim(m, (lacks + block - 1) / block);
    m->n_dropped += freed;
    assert_int_equal(prefix_reclaim(r->cache, lacks), freed * block);
}

/* Appends the rest of a sequence's text, up to n tokens. */
static void extend(struct plain *m, struct rig *r, int32_t s, int32_t n)
{
    struct plain_seq *p = &m->seq[s];
    make_room(m, r, pages_of(n) - p->n / LEN);
    if ((pages_of(n) - p->n / LEN) * kv_block_bytes(r->kv) > kv_cache_free_bytes(r->kv))
        return;
    /* A page that is begun is written to, and copied where others have it. */
    if (n > p->n && p->n % LEN != 0) {
        int32_t *last = &p->page[p->n / LEN];
        if (plain_in_seq(m, *last, s) || plain_in_node(m, *last))
            *last = m->n_page++;
    }
    for (int32_t i = pages_of(p->n); i < pages_of(n); i++)
        p->page[i] = m->n_page++;
    assert_int_equal(grow_seq(p->seq, p->token, p->n, n), PITH_OK);
    kv_seq_trim(p->seq);
    p->n = n;
}

static void start(struct plain *m, struct rig *r, int32_t s)
{
    struct plain_seq *p = &m->seq[s];
    int32_t n = 1 + (int32_t)rng_below(&m->rng, MODEL_TEXT);
    plain_text(m, p->token);
    int32_t found = plain_longest(m, p->token, n - 1);
    p->seq = begin_seq(r, p->token, n, found);
    check_text(p->seq, p->token, found);
    p->n = found;
    for (int32_t i = 0; i < found / LEN; i++)
        p->page[i] = plain_find(m, p->token, (i + 1) * LEN)->page;
    plain_use(m, p->token, found);
    extend(m, r, s, n);
}

static void fork_seq(struct plain *m, int32_t s, int32_t to)
{
    if (m->seq[to].seq != NULL)
        return;
    struct kv_seq *seq = NULL;
    assert_int_equal(kv_seq_fork(m->seq[s].seq, &seq, NULL), PITH_OK);
    kv_seq_trim(m->seq[s].seq);
    m->seq[to] = m->seq[s];
    m->seq[to].seq = seq;
    new_rest(m, &m->seq[to]);
}

static void publish_seq(struct plain *m, struct rig *r, int32_t s)
{
    struct plain_seq *p = &m->seq[s];
    int32_t n = (int32_t)rng_below(&m->rng, (uint64_t)p->n + 1), whole = n / LEN * LEN;
    assert_int_equal(prefix_publish(r->cache, 0, p->token, n, p->seq), whole);
    for (int32_t i = LEN; i <= whole; i += LEN)
        if (plain_find(m, p->token, i) == NULL) {
            struct plain_node *node = &m->node[m->n_node++];
            memcpy(node->token, p->token, sizeof(node->token));
            node->n = i;
            node->page = p->page[i / LEN - 1];
        }
    plain_use(m, p->token, whole);
}

/* Numbers of pages that nothing has are forgotten, so that the model's walks stay short. */
static void renumber(struct plain *m)
{
    int32_t n = 0;
    for (int32_t page = 0; page < m->n_page; page++) {
        bool there = plain_in_seq(m, page, -1) || plain_in_node(m, page);
        for (int32_t s = 0; s < SEQ_MAX && there; s++)
            for (int32_t i = 0; m->seq[s].seq != NULL && i < pages_of(m->seq[s].n); i++)
                if (m->seq[s].page[i] == page)
                    m->seq[s].page[i] = n;
        for (int32_t i = 0; i < m->n_node && there; i++)
            if (m->node[i].page == page)
                m->node[i].page = n;
        n += there;
    }
    m->n_page = n;
}

static void one_op(struct plain *m, struct rig *r)
{
    int32_t s = (int32_t)rng_below(&m->rng, SEQ_MAX);
    struct plain_seq *p = &m->seq[s];
    if (p->seq == NULL) {
        start(m, r, s);
        return;
    }
    switch (rng_below(&m->rng, 8)) {
    case 0:
    case 1:
        kv_seq_free(p->seq);
        p->seq = NULL;
        break;
    case 2:
        fork_seq(m, s, (int32_t)rng_below(&m->rng, SEQ_MAX));
        break;
    case 3:
        p->n = (int32_t)rng_below(&m->rng, (uint64_t)p->n + 1);
        kv_seq_truncate(p->seq, p->n);
        new_rest(m, p);
        break;
    case 4: {
        int64_t n = (int64_t)rng_below(&m->rng, 6), block = kv_block_bytes(r->kv);
        int64_t freed = plain_reclaim(m, n);
        m->n_dropped += freed;
        assert_int_equal(prefix_reclaim(r->cache, n * block), freed * block);
        break;
    }
    case 5:
        extend(m, r, s, p->n + (int32_t)rng_below(&m->rng, (uint64_t)(MODEL_TEXT - p->n) + 1));
        break;
    default:
        publish_seq(m, r, s);
    }
}

TEST(agrees_with_a_list_of_texts)
{
    static struct plain m;
    struct kv_geometry g = geometry;
    g.n_head = 1;
    struct rig r = rig_make(&g, 2 * 40); /* 40 blocks */
    int64_t block = kv_block_bytes(r.kv);
    m = (struct plain){.rng = 14};
    const char *ops = getenv("PITH_STEPS"); /* fewer, on a slow device */
    int32_t n_op = ops != NULL ? (int32_t)strtol(ops, NULL, 10) : MODEL_OPS;
    for (int32_t op = 0; op < n_op; op++) {
        one_op(&m, &r);
        assert_int_equal(prefix_count(r.cache), m.n_node);
        assert_int_equal(prefix_dropped(r.cache), m.n_dropped);
        assert_int_equal(prefix_unused_bytes(r.cache), plain_unused(&m) * block);
        assert_int_equal(used(&r), plain_used_pages(&m) * block);
        if (m.n_page > 100)
            renumber(&m);
    }
    assert_true(m.n_dropped > n_op / 100);
    for (int32_t s = 0; s < SEQ_MAX; s++)
        kv_seq_free(m.seq[s].seq);
    rig_free(&r);
}
