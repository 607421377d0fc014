/*
 * Launches, lists and small copies are recorded, and go to the card in batches. The card here is
 * the process's memory: it keeps the last batches, and runs the one kernel that copies.
 */
#include "device/gpu/driver.h"

#include <stdlib.h>

#include "testing.h"

enum { MOST = 64, ARGS = 512 };

/* A batch as it came: its launches, and the arguments of each. */
struct seen {
    int32_t n, number, slot;
    size_t size;
    struct gpu_launch launch[2 * MOST];
    uint8_t args[2 * MOST][ARGS];
};

static struct card {
    struct gpu_card base;
    struct seen seen[MOST];
    int32_t n, n_wait;
} card;

static gpu_at at_of(const void *p)
{
    return (gpu_at)(uintptr_t)p;
}

static gpu_at card_alloc(struct gpu_card *c, size_t size)
{
    (void)c;
    return at_of(calloc(1, size));
}

static void card_free(struct gpu_card *c, gpu_at at, size_t size)
{
    (void)c;
    (void)size;
    free((void *)(uintptr_t)at);
}

static void *card_alloc_host(struct gpu_card *c, size_t size, gpu_at *at)
{
    void *p = calloc(1, size);
    (void)c;
    *at = at_of(p);
    return p;
}

static void card_free_host(struct gpu_card *c, void *p, size_t size)
{
    (void)c;
    (void)size;
    free(p);
}

static void card_put(struct gpu_card *c, gpu_at to, const void *host, size_t size)
{
    (void)c;
    memcpy((void *)(uintptr_t)to, host, size);
}

static void card_get(struct gpu_card *c, void *host, gpu_at from, size_t size)
{
    (void)c;
    memcpy(host, (const void *)(uintptr_t)from, size);
}

static void run_fill(const struct gpu_fill_args *a)
{
    if (a->from != 0)
        memcpy((void *)(uintptr_t)a->to, (const void *)(uintptr_t)a->from, a->size);
    else
        memset((void *)(uintptr_t)a->to, 0, a->size);
}

static void card_submit(struct gpu_card *c, const struct gpu_batch *b)
{
    (void)c;
    assert_true(card.n < MOST && b->n <= 2 * MOST);
    struct seen *s = &card.seen[card.n++];
    *s = (struct seen){.n = b->n, .number = b->number, .slot = b->slot, .size = b->size};
    if (b->size > 0) {
        memcpy((void *)(uintptr_t)b->lists, b->host, b->size);
        memset((void *)(uintptr_t)at_of(b->host), 0xff, b->size);
    }
    for (int32_t i = 0; i < b->n; i++) {
        s->launch[i] = b->launch[i];
        s->launch[i].args = NULL;
        if (b->launch[i].kernel != GPU_KERNEL_fill)
            continue;
        memcpy(s->args[i], b->launch[i].args, sizeof(struct gpu_fill_args));
        run_fill(b->launch[i].args);
    }
}

static void card_claim(struct gpu_card *c, int32_t slot)
{
    (void)c;
    (void)slot;
}

static void card_wait(struct gpu_card *c)
{
    (void)c;
    card.n_wait++;
}

static struct gpu_driver *start(void)
{
    card = (struct card){.base = {.alloc = card_alloc,
                                  .free = card_free,
                                  .alloc_host = card_alloc_host,
                                  .free_host = card_free_host,
                                  .put = card_put,
                                  .get = card_get,
                                  .submit = card_submit,
                                  .claim = card_claim,
                                  .wait = card_wait}};
    struct gpu_driver *d = gpu_record(&card.base);
    assert_non_null(d);
    return d;
}

/* A list of n bytes of value, copied to `to` by a kernel. */
static void send_list(struct gpu_driver *d, void *to, size_t n, size_t room, int value)
{
    void *host;
    const struct gpu_fill_args args = {at_of(to), d->list(d, room, &host), n};
    const struct gpu_launch l = {GPU_KERNEL_fill, 1, 1, 1, 0, &args};
    assert_true(args.from != 0);
    memset(host, value, n);
    d->send(d, n);
    d->launch(d, &l);
}

TEST(nothing_goes_to_the_card_before_it_must)
{
    uint8_t there[64], back[64];
    memset(there, 1, sizeof(there));
    struct gpu_driver *d = start();
    d->put(d, at_of(there), "abcd", 4);
    d->clear(d, at_of(there + 4), 4);
    d->copy(d, at_of(there + 8), at_of(there), 4);
    d->rest(d);
    assert_int_equal(card.n, 0);
    assert_int_equal(there[0], 1);
    d->get(d, back, at_of(there), sizeof(there));
    assert_int_equal(card.n, 1);
    assert_int_equal(card.seen[0].n, 3);
    assert_memory_equal(back, "abcd\0\0\0\0abcd\1", 13);
    gpu_record_free(d);
}

TEST(a_long_batch_goes_by_itself_and_waits_for_nothing)
{
    uint8_t there[16];
    struct gpu_driver *d = start();
    for (int i = 0; i < 200; i++) {
        d->clear(d, at_of(there), sizeof(there));
        d->rest(d);
    }
    assert_true(card.n >= 3);
    assert_true(card.seen[0].n < card.seen[2].n);
    assert_int_equal(card.n_wait, 0);
    for (int32_t i = 0; i < card.n; i++)
        assert_int_equal(card.seen[i].number, i);
    d->wait(d);
    d->wait(d); /* nothing is left to wait for */
    assert_int_equal(card.n_wait, 1);
    gpu_record_free(d);
}

/* A pass: lists and copies, of which some grow a little from pass to pass. */
static void pass(struct gpu_driver *d, uint8_t *there, size_t more)
{
    for (size_t i = 0; i < 12; i++) {
        send_list(d, there + 64 * i, 1 + i, 4000, (int)i);
        d->put(d, at_of(there + 64 * i + 32), &i, sizeof(i));
        send_list(d, there + 1024, 100 + more, 8000 + 64 * more, 7);
        d->rest(d);
    }
    d->wait(d);
}

TEST(the_same_pass_has_the_same_launches)
{
    static uint8_t there[2048];
    static struct seen first[MOST];
    struct gpu_driver *d = start();
    pass(d, there, 0);
    int32_t n = card.n;
    memcpy(first, card.seen, sizeof(first));
    for (size_t more = 0; more < 50; more += 10) {
        int32_t differ = 0;
        card.n = 0;
        pass(d, there, more);
        assert_int_equal(card.n, n);
        for (int32_t b = 0; b < n; b++) {
            assert_int_equal(card.seen[b].n, first[b].n);
            assert_int_equal(card.seen[b].slot, first[b].slot);
            for (int32_t i = 0; i < first[b].n; i++)
                differ += memcmp(card.seen[b].args[i], first[b].args[i], ARGS) != 0;
        }
        assert_int_equal(differ, more > 0 ? 12 : 0); /* the sizes of the lists that grew */
        for (size_t i = 0; i < 12; i++) {
            assert_int_equal(there[64 * i], (int)i);
            assert_int_equal(there[64 * i + 32], (int)i);
        }
    }
    gpu_record_free(d);
}

TEST(lists_larger_than_their_place_get_a_larger_one)
{
    size_t n = 3 << 20;
    uint8_t *there = calloc(1, n);
    struct gpu_driver *d = start();
    assert_non_null(there);
    for (int i = 1; i < 20; i++) {
        send_list(d, there, n / (size_t)i, n / (size_t)i, i);
        send_list(d, there + n / 2, 100, 100, i + 1);
        d->rest(d);
        if (i % 5 != 0)
            continue;
        d->wait(d);
        assert_int_equal(there[0], i);
        assert_int_equal(there[n / 2], i + 1);
    }
    gpu_record_free(d);
    free(there);
}

TEST(a_list_that_is_being_written_stays_when_others_must_go)
{
    uint8_t there[64] = {0};
    void *host;
    struct gpu_driver *d = start();
    gpu_at room = d->alloc(d, 100);
    d->put(d, at_of(there), "ab", 2);
    const struct gpu_fill_args args = {at_of(there + 8), d->list(d, 16, &host), 4};
    const struct gpu_launch l = {GPU_KERNEL_fill, 1, 1, 1, 0, &args};
    d->free(d, room, 100); /* what was asked before may use it */
    assert_int_equal(card.n, 1);
    assert_int_equal(there[0], 'a');
    memcpy(host, "wxyz", 4);
    d->put(d, at_of(there + 16), "cd", 2);
    d->send(d, 4);
    d->launch(d, &l);
    d->wait(d);
    assert_memory_equal(there + 8, "wxyz", 4);
    assert_memory_equal(there + 16, "cd", 2);
    gpu_record_free(d);
}

TEST(after_a_failure_nothing_runs_and_what_is_asked_is_zeros)
{
    uint8_t there[4] = {1, 2, 3, 4}, back[4] = {9, 9, 9, 9};
    struct gpu_driver *d = start();
    d->clear(d, at_of(there), 2);
    card.base.failure = "lost";
    d->wait(d);
    int32_t n = card.n;
    assert_string_equal(d->failure, "lost");
    d->clear(d, at_of(there), 4);
    d->get(d, back, at_of(there), 4);
    assert_int_equal(card.n, n);
    assert_memory_equal(back, "\0\0\0\0", 4);
    assert_int_equal(there[3], 4);
    gpu_record_free(d);
}
