/*
 * The scheduler's slots. Conversations over several turns get the tokens and the bits of one long
 * pith_generate, also under policies that evict, keep state or recall. A parked slot gives its
 * memory to any request that needs it, goes to a file and back, and is not found under another
 * salt. Also a server's other calls: logits of a prompt, pins of a session, and prompts that are
 * stopped on their way.
 */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "base/threads.h"
#include "testing.h"

#include "scheduler_rig.h"

#define N_TURN 3

static char stats_path[64];

static void setup(void)
{
    pith_stats *stats = NULL;
    model_load(81);
    pith_engine *e = engine_make(NULL, 64, 1, 2048);
    strcpy(stats_path, "/tmp/pith-slots-XXXXXX");
    close(mkstemp(stats_path));
    check(pith_calibrate(e, tokens, 256, NULL, &stats, &err), &err);
    check(pith_stats_save(stats, stats_path, &err), &err);
    pith_stats_free(stats);
    pith_engine_free(e);
}

static void teardown(void)
{
    unlink(stats_path);
    model_free();
}

TEST_GROUP(setup, teardown);

static pith_engine *engine_of(const char *keep, const char *recall, const char *read,
                              int32_t kv_tokens)
{
    return engine_with(model, (pith_engine_params){.chunk = 64,
                                                   .n_thread = 1,
                                                   .kv_tokens = kv_tokens,
                                                   .page_len = PAGE_LEN,
                                                   .keep = keep,
                                                   .recall = recall,
                                                   .read = read});
}

/* ---- conversations ---- */

/* The tokens so far, and the next turn. */
struct talk {
    int32_t token[1024];
    int32_t n;
    pith_seq *alone; /* the same conversation by pith_generate; NULL: not begun */
    pith_seq *back;  /* and as it was before its last answer; NULL: there was none */
};

static void say(struct talk *t, uint64_t *rng, int32_t n)
{
    assert_true(t->n + n <= 1024);
    for (int32_t i = 0; i < n; i++)
        t->token[t->n++] = (int32_t)rng_below(rng, (uint64_t)info.n_vocab);
}

static void ask_turn(struct ask *ask, const struct talk *t, int32_t slot, int32_t n_predict)
{
    ask_init(ask, 0, 1, n_predict, 0.8f);
    ask->params.sample.seed = (uint64_t)(t->n + slot);
    ask->request.prompt = t->token;
    ask->request.n_prompt = t->n;
    ask->request.slot = slot;
}

/* The turn once more by pith_generate, in the conversation's own sequence; the same came of both.
   The answer is a part of the conversation then. */
static void check_turn(pith_engine *lone, struct talk *t, const struct ask *ask, const char *what)
{
    static struct heard alone;
    pith_generate_result result;
    const struct heard *got = &ask->answer[0];
    bool fresh = t->alone == NULL;
    if (fresh)
        t->alone = seq_make(lone);
    memset(&alone, 0, sizeof(alone));
    pith_generate_params none = ask->params;
    none.n_predict = 0;
    pith_seq_free(t->back);
    check(pith_seq_fork(t->alone, &t->back, &err), &err);
    check(pith_generate(t->back, t->token, t->n, &none, NULL, NULL, NULL, &err), &err);
    check(pith_generate(t->alone, t->token, t->n, &ask->params, hear_text, &alone, &result, &err),
          &err);
    alone.n = alone.result.n_generated = result.n_generated;
    alone.result.reason = result.reason;
    memcpy(alone.token, pith_seq_tokens(t->alone) + t->n,
           (size_t)(pith_seq_length(t->alone) - t->n) * sizeof(int32_t));
    alone.hash[0] = hash_of(t->alone);
    expect_same(got, &alone, what);
    memcpy(t->token + t->n, got->token, (size_t)got->n * sizeof(int32_t));
    t->n += got->n;
}

static void end_talk(struct talk *t)
{
    pith_seq_free(t->alone);
    pith_seq_free(t->back);
    t->alone = t->back = NULL;
}

/* It goes on from before its last answer. */
static void go_back(struct talk *t)
{
    pith_seq_free(t->alone);
    t->alone = t->back;
    t->back = NULL;
}

struct setting {
    const char *keep;
    const char *recall;
    const char *read;
    bool exact; /* a turn that says something else is cut where it differs */
};

/* Two conversations at once, whose third turn says their second anew. */
static void converse(const struct setting *c)
{
    static struct talk talk[2];
    static struct ask ask[2];
    pith_engine *e = engine_of(c->keep, c->recall, c->read, 1500);
    pith_engine *lone = engine_of(c->keep, c->recall, c->read, 3000);
    pith_scheduler *s = scheduler_make(e, NULL);
    uint64_t rng = 5;
    char what[200];
    memset(talk, 0, sizeof(talk));
    for (int32_t turn = 0; turn < N_TURN + 1; turn++) {
        int32_t before[2], back[2] = {ask[0].request.n_prompt, ask[1].request.n_prompt};
        for (int32_t i = 0; i < 2; i++) {
            before[i] = talk[i].n;
            if (turn == N_TURN) { /* the user takes the last words back */
                talk[i].n -= 8;
                before[i] -= 8;
            }
            say(&talk[i], &rng, turn == 0 ? 90 : 25 + 7 * i);
            ask_turn(&ask[i], &talk[i], 3 + i, 30);
            submit(s, &ask[i]);
        }
        run_all(s);
        for (int32_t i = 0; i < 2; i++) {
            const pith_answer_result *r = &ask[i].answer[0].result;
            snprintf(what, sizeof(what), "%s|%s|%s, turn %d of %d", c->keep != NULL ? c->keep : "",
                     c->recall != NULL ? c->recall : "", c->read != NULL ? c->read : "", turn, i);
            if (turn == N_TURN && !c->exact)
                go_back(&talk[i]);
            check_turn(lone, &talk[i], &ask[i], what);
            assert_int_equal(r->n_prompt + r->n_cached, ask[i].request.n_prompt);
            if (turn == 0) {
                assert_int_equal(r->reuse, PITH_REUSE_NEW);
            } else if (turn < N_TURN) { /* all but the last token, which was not evaluated */
                assert_int_equal(r->reuse, PITH_REUSE_NONE);
                assert_int_equal(r->n_cached, before[i] - 1);
            } else if (!c->exact) { /* to before the answer that was taken back */
                assert_int_equal(r->reuse, PITH_REUSE_NONE);
                assert_int_equal(r->n_cached, back[i]);
            } else {
                assert_int_equal(r->reuse, PITH_REUSE_DIFFERS);
                assert_true(r->differs_at >= before[i] && r->differs_at < before[i] + 8);
                assert_int_equal(r->n_cached, r->differs_at);
            }
        }
    }
    assert_int_equal(stats_of_scheduler(s).n_parked, 2);
    assert_true(stats_of_scheduler(s).parked_bytes > 0);
    end_talk(&talk[0]);
    end_talk(&talk[1]);
    free_both(s, e);
    pith_engine_free(lone);
}

TEST(turns_get_what_one_long_generation_gets)
{
    char tria[200], v3[200];
    snprintf(v3, sizeof(v3), "triattention:v3,prefix=8,window=8,budget=64,slack=16,stats=%s",
             stats_path);
    snprintf(tria, sizeof(tria), "triattention:budget=64,slack=16,window=4,pin-prompt=off,stats=%s",
             stats_path);
    const struct setting settings[] = {
        {.exact = true},
        {.keep = "knorm:budget=64,slack=16,window=4"},
        {.keep = tria},
        {.keep = v3},
        {.keep = "longflow:budget=64,slack=16,prompt-window=8"},
        {.keep = "longflow:budget=64,slack=1,prompt-window=8,overwrite=on"},
        {.keep = "h2o:budget=64,slack=16,window=4"},
        {.keep = "knorm:budget=64,slack=16", .recall = "kv:take=16,last=16,ram=4MiB"},
        {.keep = "streaming:budget=64,slack=8", .recall = "kv:take=16,last=8,every=4,ram=4MiB"},
        {.read = "quoka:budget=24,chunk=16,gate=1"},
    };
    for (size_t i = 0; i < PI_LEN(settings); i++)
        converse(&settings[i]);
}

static bool note_state(void *user, const pith_scheduler_item *item)
{
    pith_item_state *states = user;
    states[item->id - 1] = item->state;
    return true;
}

/* The second request of a slot waits for the first, and no other waits with it. */
TEST(the_second_of_a_slot_waits_for_the_first)
{
    static struct talk talk;
    static struct ask ask[3];
    static struct heard alone;
    pith_engine *e = engine_of(NULL, NULL, NULL, 1000);
    pith_scheduler *s = scheduler_make(e, NULL);
    pith_item_state states[3];
    uint64_t rng = 3;
    memset(&talk, 0, sizeof(talk));
    say(&talk, &rng, 60);
    for (int32_t i = 0; i < 3; i++) {
        ask_turn(&ask[i], &talk, i < 2 ? 5 : -1, 20);
        submit(s, &ask[i]);
    }
    ask[0].request.n_answer = 2;
    assert_int_equal(pith_scheduler_submit(s, &ask[0].request, NULL, &err), PITH_INVALID);
    assert_string_equal(err.message, "n_answer: 2 answers cannot be parked in one slot");
    check(pith_scheduler_step(s, NULL, &err), &err);
    check(pith_scheduler_step(s, NULL, &err), &err);
    pith_scheduler_each(s, note_state, states);
    assert_int_equal(states[0], PITH_ITEM_GENERATING);
    assert_int_equal(states[1], PITH_ITEM_WAITING);
    assert_int_equal(states[2], PITH_ITEM_GENERATING);
    assert_int_equal(pith_scheduler_slot_erase(s, 5, NULL, &err), PITH_BUSY);
    run_all(s);
    assert_int_equal(ask[1].answer[0].result.n_cached, 59);
    assert_int_equal(ask[1].answer[0].result.differs_at, 60);
    for (int32_t i = 0; i < 3; i++) {
        generate_alone(e, &ask[i], 0, &alone);
        expect_same(&ask[i].answer[0], &alone, "waited");
    }
    free_both(s, e);
}

/* ---- memory ---- */

static int64_t used_bytes_of(pith_engine *e)
{
    pith_kv_stats kv;
    pith_engine_kv_stats(e, &kv);
    return kv.used_bytes;
}

/* One turn in a slot, run to its end. */
static const pith_answer_result *run_turn(pith_scheduler *s, struct ask *ask, const struct talk *t,
                                          int32_t slot, int32_t n_predict)
{
    ask_turn(ask, t, slot, n_predict);
    submit(s, ask);
    run_all(s);
    assert_int_equal(ask->answer[0].n_done, 1);
    assert_int_equal(ask->answer[0].result.status, PITH_OK);
    return &ask->answer[0].result;
}

/* The slot parked longest ago goes first, and no more than is needed; the account equals the
   pool's. */
TEST(what_was_parked_longest_ago_goes_first)
{
    static struct talk talk[4];
    static struct ask ask;
    pith_scheduler_params params;
    pith_engine *e = engine_of(NULL, NULL, NULL, 400);
    pith_engine *lone = engine_of(NULL, NULL, NULL, 1024);
    uint64_t rng = 9;
    pith_scheduler_params_default(&params);
    params.no_prefix = true;
    params.n_slot = 4;
    params.swap_bytes = 0;
    pith_scheduler *s = scheduler_make(e, &params);
    memset(talk, 0, sizeof(talk));
    for (int32_t i = 0; i < 3; i++) {
        say(&talk[i], &rng, 100);
        run_turn(s, &ask, &talk[i], i, 10);
        check_turn(lone, &talk[i], &ask, "before");
        assert_int_equal(used_bytes_of(e), stats_of_scheduler(s).parked_bytes);
        assert_int_equal(stats_of_scheduler(s).n_parked, i + 1);
    }
    say(&talk[0], &rng, 5); /* now the second was parked longest ago */
    assert_int_equal(run_turn(s, &ask, &talk[0], 0, 10)->reuse, PITH_REUSE_NONE);
    check_turn(lone, &talk[0], &ask, "again");
    say(&talk[3], &rng, 150);
    run_turn(s, &ask, &talk[3], 3, 10);
    check_turn(lone, &talk[3], &ask, "the one that wants memory");
    assert_int_equal(stats_of_scheduler(s).parked_dropped, 1);
    assert_int_equal(used_bytes_of(e), stats_of_scheduler(s).parked_bytes);
    say(&talk[1], &rng, 5);
    const pith_answer_result *r = run_turn(s, &ask, &talk[1], 1, 10);
    assert_int_equal(r->reuse, PITH_REUSE_DROPPED);
    assert_int_equal(r->n_cached, 0);
    check_turn(lone, &talk[1], &ask, "after it was dropped");
    for (int32_t i = 0; i < 4; i++)
        end_talk(&talk[i]);
    free_both(s, e);
    pith_engine_free(lone);
}

/* Four conversations in a memory for three. The one used longest ago goes to host memory, and is
   dropped where there is no room for it either. All go on as they would alone. */
static void park_beside_host(const char *keep, int32_t kv_tokens, int64_t n_host)
{
    static struct talk talk[4];
    static struct ask ask;
    pith_scheduler_params params;
    pith_engine *e = engine_of(keep, NULL, NULL, kv_tokens);
    pith_engine *lone = engine_of(keep, NULL, NULL, 4000);
    uint64_t rng = 29;
    int64_t each = 0;
    pith_scheduler_params_default(&params);
    params.no_prefix = true;
    params.n_slot = 4;
    pith_scheduler *s = scheduler_make(e, &params);
    memset(talk, 0, sizeof(talk));
    for (int32_t turn = 0; turn < N_TURN; turn++)
        for (int32_t i = 0; i < 4; i++) {
            bool first = turn == 0;
            say(&talk[i], &rng, first ? 90 : 5);
            int32_t n_held = talk[i].alone != NULL ? pith_seq_length(talk[i].alone) : 0;
            const pith_answer_result *r = run_turn(s, &ask, &talk[i], i, 10);
            pith_scheduler_stats t = stats_of_scheduler(s);
            if (first && i == 0) {
                each = t.parked_bytes;
                s->params.swap_bytes = n_host * 6 * each;
            }
            if (!first && n_host > 0) { /* all of it was there */
                assert_int_equal(r->reuse, PITH_REUSE_NONE);
                assert_int_equal(r->n_cached, n_held);
            }
            if (first && i == 3) {
                assert_int_equal(t.n_parked_swapped > 0, n_host > 0);
                assert_int_equal(t.parked_dropped > 0, n_host == 0);
            }
            assert_true(t.swapped_bytes <= s->params.swap_bytes + 4096);
            assert_int_equal(t.swapped_bytes > 0, t.n_parked_swapped > 0);
            assert_int_equal(used_bytes_of(e), t.parked_bytes);
            if (r->n_cached == 0) /* it was dropped, and read anew */
                end_talk(&talk[i]);
            check_turn(lone, &talk[i], &ask, "beside host memory");
        }
    pith_scheduler_stats t = stats_of_scheduler(s);
    assert_int_equal(t.n_parked == 4, n_host > 0);
    assert_int_equal(t.parked_dropped > 0, n_host == 0);
    for (int32_t i = 0; i < 4; i++)
        end_talk(&talk[i]);
    pith_memory_stats memory;
    pith_engine_memory_stats(e, &memory);
    assert_int_equal(memory.aside_bytes, t.swapped_bytes);
    free_both(s, e);
    pith_engine_free(lone);
}

TEST(parked_conversations_wait_in_host_memory)
{
    for (int64_t n_host = 0; n_host < 2; n_host++) {
        park_beside_host(NULL, 340, n_host);
        park_beside_host("longflow:budget=64,slack=16,prompt-window=8", 230, n_host);
    }
}

/* Two prompts come together, and what is parked leaves pages for the first alone. The second gets
   its own from what is parked, also where it is the only one that still runs. */
TEST(two_that_come_together_get_the_pages_of_what_is_parked)
{
    static struct talk talk[3];
    static struct ask ask[3];
    static struct heard alone;
    pith_engine *e = engine_of(NULL, NULL, NULL, 24 * PAGE_LEN);
    pith_engine *lone = engine_of(NULL, NULL, NULL, 600);
    pith_scheduler *s = scheduler_make(e, NULL);
    uint64_t rng = 23;
    memset(talk, 0, sizeof(talk));
    say(&talk[0], &rng, 21 * PAGE_LEN - 5);
    run_turn(s, &ask[0], &talk[0], PITH_SLOT_ANY, 1);
    for (int32_t i = 1; i < 3; i++) {
        say(&talk[i], &rng, i == 1 ? 3 * PAGE_LEN - 5 : PAGE_LEN - 4);
        ask_turn(&ask[i], &talk[i], PITH_SLOT_ANY, 1);
        submit(s, &ask[i]);
    }
    run_all(s);
    for (int32_t i = 1; i < 3; i++) {
        assert_int_equal(ask[i].answer[0].result.status, PITH_OK);
        generate_alone(lone, &ask[i], 0, &alone);
        expect_same(&ask[i].answer[0], &alone, "together");
    }
    free_both(s, e);
    pith_engine_free(lone);
}

/* A slot in host memory can be cut without a policy, saved and erased, and makes room for preempted
   answers. */
TEST(what_waits_in_host_memory_is_cut_saved_and_erased)
{
    static struct talk talk[2];
    static struct ask ask;
    char path[64] = "/tmp/pith-slot-XXXXXX";
    pith_scheduler_params params;
    pith_engine *e = engine_of(NULL, NULL, NULL, 200);
    pith_engine *lone = engine_of(NULL, NULL, NULL, 1024);
    uint64_t rng = 31;
    int32_t n;
    close(mkstemp(path));
    pith_scheduler_params_default(&params);
    params.no_prefix = true;
    pith_scheduler *s = scheduler_make(e, &params);
    memset(talk, 0, sizeof(talk));
    for (int32_t i = 0; i < 2; i++) {
        say(&talk[i], &rng, 100);
        run_turn(s, &ask, &talk[i], i, 10);
        check_turn(lone, &talk[i], &ask, "before");
    }
    assert_int_equal(stats_of_scheduler(s).n_parked_swapped, 1);
    talk[0].n = 60; /* it goes on otherwise from here */
    say(&talk[0], &rng, 40);
    const pith_answer_result *r = run_turn(s, &ask, &talk[0], 0, 10);
    assert_int_equal(r->reuse, PITH_REUSE_DIFFERS);
    assert_int_equal(r->n_cached, 60);
    check_turn(lone, &talk[0], &ask, "cut");
    assert_int_equal(stats_of_scheduler(s).n_parked_swapped, 1);
    check(pith_scheduler_slot_save(s, 1, path, &n, &err), &err); /* the other one goes for it */
    assert_int_equal(n, 109);
    assert_int_equal(stats_of_scheduler(s).parked_dropped, 0);
    check(pith_scheduler_slot_erase(s, 0, NULL, &err), &err);
    check(pith_scheduler_slot_erase(s, 1, NULL, &err), &err);
    assert_int_equal(stats_of_scheduler(s).swapped_bytes, 0);
    assert_int_equal(used_bytes_of(e), 0);
    unlink(path);
    for (int32_t i = 0; i < 2; i++)
        end_talk(&talk[i]);
    free_both(s, e);
    pith_engine_free(lone);
}

/* ---- what is not named ---- */

/* The number of a place comes with the answer, and may be sent back: the conversation goes on, also
   with a file in its place. */
TEST(the_place_that_an_answer_names_can_be_named)
{
    static struct talk talk;
    static struct ask ask;
    char path[64] = "/tmp/pith-slot-XXXXXX";
    pith_engine *e = engine_of(NULL, NULL, NULL, 600);
    pith_engine *lone = engine_of(NULL, NULL, NULL, 600);
    pith_scheduler *s = scheduler_make(e, NULL);
    uint64_t rng = 17;
    int32_t n, place;
    memset(&talk, 0, sizeof(talk));
    close(mkstemp(path));
    say(&talk, &rng, 40);
    place = run_turn(s, &ask, &talk, PITH_SLOT_ANY, 20)->slot;
    check_turn(lone, &talk, &ask, "no slot");
    assert_int_equal(place, 64);
    for (int32_t turn = 0; turn < 2; turn++) {
        say(&talk, &rng, 9);
        const pith_answer_result *r = run_turn(s, &ask, &talk, place, 20);
        assert_int_equal(r->reuse, PITH_REUSE_NONE);
        assert_true(turn > 0 || r->slot == place); /* a restored one stays for others, too */
        place = r->slot;
        check_turn(lone, &talk, &ask, "its place");
        check(pith_scheduler_slot_save(s, place, path, &n, &err), &err);
        check(pith_scheduler_slot_erase(s, place, NULL, &err), &err);
        check(pith_scheduler_slot_restore(s, place, path, 0, &n, &err), &err);
        assert_int_equal(n, talk.n - 1);
    }
    ask_turn(&ask, &talk, PITH_SLOT_MAX, 20);
    assert_int_equal(pith_scheduler_submit(s, &ask.request, NULL, &err), PITH_INVALID);
    assert_string_equal(err.message, "slot: 1048576 is not in -2..1048575");
    unlink(path);
    end_talk(&talk);
    free_both(s, e);
    pith_engine_free(lone);
}

/* No copy is made for less than a page, which is no policy's doing. */
TEST(less_than_a_page_is_too_short_for_a_copy)
{
    static struct talk talk;
    static struct ask ask;
    pith_engine *e = engine_of(NULL, NULL, NULL, 600);
    pith_scheduler *s = scheduler_make(e, NULL);
    uint64_t rng = 19;
    memset(&talk, 0, sizeof(talk));
    say(&talk, &rng, PAGE_LEN - 1);
    run_turn(s, &ask, &talk, PITH_SLOT_ANY, 5);
    const pith_answer_result *r = run_turn(s, &ask, &talk, PITH_SLOT_ANY, 5);
    assert_int_equal(r->reuse, PITH_REUSE_SHORT);
    assert_int_equal(r->differs_at, PAGE_LEN - 1);
    assert_int_equal(r->n_cached, 0);
    assert_int_equal(stats_of_scheduler(s).reuse_short, 1);
    assert_int_equal(stats_of_scheduler(s).reuse_policy, 0);
    free_both(s, e);
}

/* ---- files and salts ---- */

TEST(a_slot_goes_to_a_file_and_back)
{
    static struct talk talk;
    static struct ask ask;
    static const char *const keeps[] = {NULL, "longflow:budget=64,slack=16,prompt-window=8"};
    for (size_t k = 0; k < PI_LEN(keeps); k++) {
        char path[64] = "/tmp/pith-slot-XXXXXX";
        pith_engine *e = engine_of(keeps[k], NULL, NULL, 600);
        pith_engine *lone = engine_of(keeps[k], NULL, NULL, 600);
        pith_scheduler *s = scheduler_make(e, NULL);
        uint64_t rng = 11;
        int32_t n = 0, n_held;
        memset(&talk, 0, sizeof(talk));
        close(mkstemp(path));
        assert_int_equal(pith_scheduler_slot_save(s, 0, path, &n, &err), PITH_NOT_FOUND);
        assert_int_equal(pith_scheduler_slot_save(s, 64, path, &n, &err), PITH_INVALID);
        assert_string_equal(err.message, "slot: 64 is not in 0..63");
        say(&talk, &rng, 100);
        run_turn(s, &ask, &talk, 0, 20);
        check_turn(lone, &talk, &ask, "before");
        check(pith_scheduler_slot_save(s, 0, path, &n_held, &err), &err);
        assert_int_equal(n_held, 119);
        check(pith_scheduler_slot_erase(s, 0, &n, &err), &err);
        assert_int_equal(n, n_held);
        assert_int_equal(pith_scheduler_slot_erase(s, 0, &n, &err), PITH_NOT_FOUND);
        check(pith_scheduler_slot_restore(s, 7, path, 0, &n, &err), &err);
        assert_int_equal(n, n_held);
        assert_int_equal(stats_of_scheduler(s).n_parked, 1);
        say(&talk, &rng, 9);
        const pith_answer_result *r = run_turn(s, &ask, &talk, 7, 20);
        assert_int_equal(r->reuse, PITH_REUSE_NONE);
        assert_int_equal(r->n_cached, n_held);
        check_turn(lone, &talk, &ask, "restored");
        assert_int_equal(pith_scheduler_slot_restore(s, 7, "/nowhere/at all", 0, &n, &err),
                         PITH_IO);
        assert_int_equal(stats_of_scheduler(s).n_parked, 1);
        unlink(path);
        end_talk(&talk);
        free_both(s, e);
        pith_engine_free(lone);
    }
}

/* A slot from a file cannot be computed again. When it is put back while its prompt is read, it
   goes to host memory, and reads on from there. */
TEST(what_came_from_a_file_is_swapped_and_reads_on)
{
    static struct talk talk;
    static struct ask ask, other;
    char path[64] = "/tmp/pith-slot-XXXXXX";
    pith_scheduler_params params;
    pith_engine *e = engine_of(NULL, NULL, NULL, 1000);
    pith_engine *lone = engine_of(NULL, NULL, NULL, 1000);
    uint64_t rng = 19;
    memset(&talk, 0, sizeof(talk));
    close(mkstemp(path));
    pith_scheduler_params_default(&params);
    params.step_tokens = 16;
    params.no_prefix = true;
    pith_scheduler *s = scheduler_make(e, &params);
    say(&talk, &rng, 40);
    run_turn(s, &ask, &talk, 0, 10);
    check_turn(lone, &talk, &ask, "before");
    check(pith_scheduler_slot_save(s, 0, path, NULL, &err), &err);
    check(pith_scheduler_slot_restore(s, 0, path, 0, NULL, &err), &err);
    say(&talk, &rng, 100);
    ask_init(&other, 0, 8, 60, 0.0f);
    other.request.priority = 1;
    ask_turn(&ask, &talk, 0, 10);
    submit(s, &other);
    submit(s, &ask);
    for (int32_t i = 0; i < 3; i++)
        check(pith_scheduler_step(s, NULL, &err), &err);
    assert_int_equal(stats_of_scheduler(s).n_reading, 1);
    assert_true(scheduler_relieve(s, NULL, s->kv_bytes));
    run_all(s);
    assert_int_equal(stats_of_scheduler(s).preempted_swap, 1);
    assert_int_equal(ask.answer[0].result.n_cached, 49);
    check_turn(lone, &talk, &ask, "swapped");
    unlink(path);
    end_talk(&talk);
    free_both(s, e);
    pith_engine_free(lone);
}

/* Slots and prefixes are found under their own salt and not under another. */
TEST(slots_of_another_salt_are_not_found)
{
    static struct ask ask;
    pith_engine *e = engine_of(NULL, NULL, NULL, 1024);
    pith_scheduler *s = scheduler_make(e, NULL);
    static const struct {
        uint64_t salt;
        int32_t slot, n_cached;
        pith_reuse reuse;
    } turn[] = {
        {1, -1, 0, PITH_REUSE_OFF},      {2, -1, 0, PITH_REUSE_OFF},
        {0, -1, 0, PITH_REUSE_OFF},      {1, -1, 96, PITH_REUSE_OFF},
        {2, -1, 96, PITH_REUSE_OFF},     {3, 0, 0, PITH_REUSE_NEW},
        {3, 0, 99, PITH_REUSE_DIFFERS},  {4, 0, 0, PITH_REUSE_SALT},
        {3, -2, 99, PITH_REUSE_DIFFERS}, {5, -2, 0, PITH_REUSE_NEW},
    };
    for (size_t i = 0; i < PI_LEN(turn); i++) {
        ask_init(&ask, 0, 100, 10, 0.0f);
        ask.request.cache_salt = turn[i].salt;
        ask.request.slot = turn[i].slot;
        submit(s, &ask);
        run_all(s);
        assert_int_equal(ask.answer[0].result.n_cached, turn[i].n_cached);
        assert_int_equal(ask.answer[0].result.reuse, turn[i].reuse);
    }
    free_both(s, e);
}

/* ---- logits of a prompt ---- */

struct shown {
    uint64_t hash[TOKENS_MAX];
    int32_t n, first, stop_at;
};

static bool hear_prompt(void *user, int64_t request, int32_t index, int32_t token,
                        const float *logits)
{
    struct ask *ask = user;
    struct shown *shown = (struct shown *)(void *)ask->params.message; /* borrowed as a pointer */
    (void)request;
    assert_int_equal(token, ask->request.prompt[index]);
    assert_int_equal(index, shown->first + shown->n);
    shown->hash[index] = pith_logits_hash(logits, info.n_vocab);
    shown->n++;
    return shown->n != shown->stop_at;
}

static void show_prompt(pith_engine *e, const uint64_t *want, int32_t step_tokens, int32_t from)
{
    static struct ask ask, other;
    static struct shown shown;
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.step_tokens = step_tokens;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t again = 0; again < 2; again++) { /* the second time it is in the cache */
        memset(&shown, 0, sizeof(shown));
        shown.first = from;
        ask_init(&ask, 0, 150, 1, 0.0f);
        ask_init(&other, 40, 70, 40, 0.8f);
        ask.params.message = (const char *)(const void *)&shown;
        ask.request.on_prompt = hear_prompt;
        ask.request.prompt_from = from;
        submit(s, &other);
        submit(s, &ask);
        run_all(s);
        assert_int_equal(shown.n, 150 - from);
        assert_memory_equal(shown.hash + from, want + from, (size_t)(150 - from) * sizeof(*want));
        assert_int_equal(ask.answer[0].hash[0], want[149]);
        assert_true(ask.answer[0].result.n_cached <= from);
        if (again && e->traits.takes_prefixes)
            assert_int_equal(ask.answer[0].result.n_cached, from / PAGE_LEN * PAGE_LEN);
    }
    memset(&shown, 0, sizeof(shown));
    shown.stop_at = 20;
    ask_init(&ask, 0, 150, 1, 0.0f);
    ask.params.message = (const char *)(const void *)&shown;
    ask.request.on_prompt = hear_prompt;
    submit(s, &ask);
    run_all(s);
    assert_int_equal(shown.n, 20);
    assert_int_equal(ask.answer[0].result.reason, PITH_STOP_CALLER);
    pith_scheduler_free(s);
    assert_int_equal(used_bytes_of(e), 0);
}

TEST(tells_the_logits_of_a_whole_prompt)
{
    static uint64_t want[TOKENS_MAX];
    static const struct setting settings[] = {
        {.keep = NULL},
        {.keep = "longflow:budget=64,slack=16,prompt-window=8"},
        {.read = "quoka:budget=24,chunk=16,gate=1"},
    };
    for (size_t i = 0; i < PI_LEN(settings); i++) {
        pith_engine *e = engine_of(settings[i].keep, NULL, settings[i].read, 1024);
        pith_seq_free(eval_all(e, 150, want));
        show_prompt(e, want, 0, 0);
        show_prompt(e, want, 13, 0);
        show_prompt(e, want, 13, 100);
        pith_engine_free(e);
    }
}

/* ---- pins ---- */

/* A session of 900 tokens whose first 20 stay, in the memory of its first turns. */
TEST(pinned_tokens_stay_through_a_long_session)
{
    static struct talk talk;
    static struct ask ask;
    pith_engine *e = engine_of("knorm:budget=64,slack=16,window=4,pin-prompt=on", NULL, NULL, 200);
    pith_scheduler *s = scheduler_make(e, NULL);
    uint64_t rng = 13;
    int64_t most = 0;
    int32_t pos[128];
    memset(&talk, 0, sizeof(talk));
    say(&talk, &rng, 100);
    ask_turn(&ask, &talk, 0, 10);
    for (int32_t turn = 0; turn < 20; turn++) {
        ask_turn(&ask, &talk, 0, 10);
        ask.request.n_pin = 20;
        submit(s, &ask);
        run_all(s);
        assert_int_equal(ask.answer[0].result.status, PITH_OK);
        assert_int_equal(ask.answer[0].result.n_cached, turn == 0 ? 0 : talk.n - 31);
        assert_true(ask.answer[0].result.keep.evicted > 0);
        most = turn == 2 ? used_bytes_of(e) : most;
        pith_lane_info lane;
        assert_int_equal(pith_seq_lane(s->park.slot[0].seq, 0, 0, &lane, pos, 128), PITH_OK);
        for (int32_t i = 0; i < 20; i++)
            assert_int_equal(pos[i], i);
        assert_true(lane.n_entry < 80);
        memcpy(talk.token + talk.n, ask.answer[0].token, 10 * sizeof(int32_t));
        talk.n += 10;
        say(&talk, &rng, 30);
    }
    assert_true(talk.n > 800 && most > 0 && used_bytes_of(e) <= most + most / 4);
    free_both(s, e);
}

/* ---- stopping ---- */

struct stopper {
    pith_scheduler *s;
    int64_t id;
    int32_t n_pass, cancel_at;
};

static bool count_passes(void *user, const pith_tap_rows *rows)
{
    struct stopper *stopper = user;
    if (rows->layer == 0 && ++stopper->n_pass == stopper->cancel_at)
        pith_scheduler_cancel(stopper->s, stopper->id);
    return true;
}

/* A cancelled prompt ends with its pass. The slot's earlier entries are there for the next prompt,
   even if a read policy has seen some of the cancelled one. */
TEST(a_cancelled_prompt_leaves_the_slot_usable)
{
    static struct talk talk;
    static struct ask ask, other;
    pith_engine *e = engine_of(NULL, NULL, "quoka:budget=24,chunk=16,gate=1", 1500);
    pith_engine *lone = engine_of(NULL, NULL, "quoka:budget=24,chunk=16,gate=1", 1500);
    pith_scheduler *s = scheduler_make(e, NULL);
    uint64_t rng = 17;
    memset(&talk, 0, sizeof(talk));
    say(&talk, &rng, 50);
    run_turn(s, &ask, &talk, 0, 10);
    check_turn(lone, &talk, &ask, "before");
    int32_t before = talk.n;
    say(&talk, &rng, 700);
    struct stopper stopper = {.s = s, .cancel_at = 3};
    check(pith_engine_set_tap(e, count_passes, &stopper, &err), &err);
    ask_turn(&ask, &talk, 0, 10);
    submit(s, &ask);
    stopper.id = ask.id;
    run_all(s);
    assert_int_equal(ask.answer[0].result.status, PITH_CANCELLED);
    assert_int_equal(stopper.n_pass, 3);
    check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
    talk.n = before;
    say(&talk, &rng, 20);
    ask_init(&other, 0, 40, 20, 0.0f);
    submit(s, &other);
    assert_int_equal(run_turn(s, &ask, &talk, 0, 10)->n_cached, before - 1);
    check_turn(lone, &talk, &ask, "after");
    end_talk(&talk);
    free_both(s, e);
    pith_engine_free(lone);
}

/* ---- everything at random ---- */

#define N_TALK 6

static bool sum_items(void *user, const pith_scheduler_item *item)
{
    int64_t *held = user;
    assert_true(item->held_bytes >= 0 && item->aside_bytes >= 0);
    assert_true((item->seq != NULL) || item->held_bytes == 0);
    held[item->state == PITH_ITEM_PARKED] += item->held_bytes;
    return true;
}

struct storm {
    bool any; /* turns name no slot */
    struct talk talk[N_TALK];
    struct ask ask[N_TALK];
    bool busy[N_TALK];
    int64_t n_turn, n_reused, n_dropped, n_cancelled, n_swapped;
};

static void end_turn(struct storm *w, pith_engine *lone, int32_t i, uint64_t *rng)
{
    struct talk *t = &w->talk[i];
    const pith_answer_result *r = &w->ask[i].answer[0].result;
    w->busy[i] = false;
    w->n_turn++;
    if (r->status == PITH_CANCELLED) { /* it begins anew, in a slot that holds something else */
        w->n_cancelled++;
        end_talk(t);
        t->n = 0;
        say(t, rng, 40);
        return;
    }
    w->n_reused += r->n_cached > 0;
    w->n_dropped += r->reuse == PITH_REUSE_DROPPED;
    /* None of it was there any more, or its beginning was, where that is exact. */
    if (r->n_cached == 0 || (w->any && r->reuse != PITH_REUSE_NONE))
        end_talk(t);
    check_turn(lone, t, &w->ask[i], "in a storm");
    if (t->n > 170) {
        end_talk(t);
        t->n = 0;
    }
    say(t, rng, 5 + (int32_t)rng_below(rng, 30));
}

/* n_step steps in which turns come and are cancelled, slots are erased and the memory is too small
   for all of them. any: they name no slot. */
static void storm(const char *keep, const char *recall, int32_t kv_tokens, int32_t n_step, bool any,
                  int64_t swap_bytes)
{
    static struct storm w;
    pith_engine *e = engine_of(keep, recall, NULL, kv_tokens);
    pith_engine *lone = engine_of(keep, recall, NULL, 4000);
    pith_scheduler_params params;
    uint64_t rng = 23;
    memset(&w, 0, sizeof(w));
    pith_scheduler_params_default(&params);
    params.no_prefix = !any;
    params.n_slot = N_TALK;
    params.step_tokens = 48;
    params.swap_bytes = swap_bytes;
    w.any = any;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < N_TALK; i++)
        say(&w.talk[i], &rng, 20 + 9 * i);
    for (int32_t step = 0; step < n_step; step++) {
        int32_t i = (int32_t)rng_below(&rng, N_TALK);
        int64_t held[2] = {0};
        if (!w.busy[i] && rng_below(&rng, 4) == 0) {
            ask_turn(&w.ask[i], &w.talk[i], any ? PITH_SLOT_ANY : i,
                     2 + (int32_t)rng_below(&rng, 14));
            submit(s, &w.ask[i]);
            w.busy[i] = true;
        } else if (w.busy[i] && rng_below(&rng, 60) == 0) {
            pith_scheduler_cancel(s, w.ask[i].id);
        } else if (!w.busy[i] && rng_below(&rng, 200) == 0) {
            pith_scheduler_slot_erase(s, i, NULL, &err);
        }
        check(pith_scheduler_step(s, NULL, &err), &err);
        pith_scheduler_each(s, sum_items, held);
        pith_scheduler_stats t = stats_of_scheduler(s);
        w.n_swapped += t.n_parked_swapped;
        assert_true(t.n_parked_swapped <= t.n_parked);
        if (!any) { /* no sequence shares a page here */
            assert_int_equal(t.parked_bytes, held[1]);
            assert_int_equal(used_bytes_of(e), held[0] + held[1]);
        }
        for (i = 0; i < N_TALK; i++)
            if (w.busy[i] && w.ask[i].answer[0].n_done > 0)
                end_turn(&w, lone, i, &rng);
    }
    pith_scheduler_stats t = stats_of_scheduler(s);
    assert_true(t.n_step > n_step / 2);
    if (keep != NULL)
        assert_int_equal(t.preempted_recompute + t.preempted_swap, 0);
    assert_true(w.n_turn > n_step / 40 && w.n_reused > w.n_turn / 4 && w.n_cancelled > 0);
    assert_true(swap_bytes > 0 || (w.n_dropped > 0 && w.n_swapped == 0));
    assert_true(swap_bytes == 0 || recall != NULL || w.n_swapped > 0);
    pith_scheduler_free(s);
    assert_int_equal(used_bytes_of(e), 0);
    for (int32_t i = 0; i < N_TALK; i++)
        end_talk(&w.talk[i]);
    pith_engine_free(e);
    pith_engine_free(lone);
}

TEST(a_storm_of_turns_keeps_every_account)
{
    for (int32_t any = 0; any < 2; any++) {
        int32_t n = (any ? 800 : 1600) / (TEST_STRIDE > 1 ? 2 : 1);
        const int64_t much = 1 << 30, little = 100000;
        storm(NULL, NULL, 500, n, any != 0, any ? 0 : much);
        storm("knorm:budget=48,slack=16,window=4", NULL, 260, n, any != 0, any ? 0 : little);
        storm("longflow:budget=48,slack=16,prompt-window=8", NULL, 260, n, any != 0,
              any ? much : 0);
        storm("knorm:budget=48,slack=16", "kv:take=16,last=16,ram=4MiB", 340, n, any != 0, 0);
    }
}
