/*
 * test_kv_layers.c - layers with their own storage types. It checks the types that a text names,
 * several classes of pages under one budget of bytes, and memory given back to the system. Also
 * snapshots and byte budgets of a keep policy.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "kv_check.h"
#include "policy/keep/rules/options.h"
#include "testing.h"
#include "status.h"

#define N_LAYER 6
#define N_HEAD 2
#define DIM 64

/* K: q4_0, f16 in the first 2 and the last layer; V: turbo3, q8_0 in the first and the last 2. */
static const struct kv_geometry mixed = {.n_layer = N_LAYER,
                                         .n_head = N_HEAD,
                                         .dim_k = DIM,
                                         .dim_v = DIM,
                                         .page_len = 16,
                                         .type_k = KV_TYPE_Q4_0,
                                         .type_v = KV_TYPE_TURBO3,
                                         .edge_k = {KV_TYPE_F16, 2, 1},
                                         .edge_v = {KV_TYPE_Q8_0, 1, 2}};

/* ---- texts ---- */

TEST(types_are_read)
{
    static const struct {
        const char *text;
        struct kv_type_choice want;
    } cases[] = {
        {NULL, {KV_TYPE_F16, {0}, false, false}},
        {"f32", {KV_TYPE_F32, {0}, false, false}},
        {"turbo2", {KV_TYPE_TURBO2, {0}, false, false}},
        {"turbo3:force", {KV_TYPE_TURBO3, {0}, true, false}},
        {"turbo2:q8_0=2+2", {KV_TYPE_TURBO2, {KV_TYPE_Q8_0, 2, 2}, false, false}},
        {"turbo3:force:q8_0=0+8", {KV_TYPE_TURBO3, {KV_TYPE_Q8_0, 0, 8}, true, false}},
        {"turbo4:centre", {KV_TYPE_TURBO4, {0}, false, true}},
        {"turbo4:force:centre:f16=1+0", {KV_TYPE_TURBO4, {KV_TYPE_F16, 1, 0}, true, true}},
        {"q4_0:f16=12+0", {KV_TYPE_Q4_0, {KV_TYPE_F16, 12, 0}, false, false}},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct kv_type_choice got;
        check(kv_type_read("type_k", cases[i].text, &got, &err), &err);
        assert_int_equal(got.type, cases[i].want.type);
        assert_int_equal(got.force, cases[i].want.force);
        assert_int_equal(got.centre, cases[i].want.centre);
        assert_int_equal(got.edge.type, cases[i].want.edge.type);
        assert_int_equal(got.edge.first, cases[i].want.edge.first);
        assert_int_equal(got.edge.last, cases[i].want.edge.last);
    }
}

TEST(mistakes_are_named)
{
    static const char names[] = "(f32, f16, q8_0, q4_0, turbo4, turbo3, turbo2, bf16)";
    static const char *const cases[][2] = {
        {"q5_0", "type_k: \"q5_0\" is not a storage type"},
        {"", "type_k: \"\" is not a storage type"},
        {"turbo", "type_k: \"turbo\" is not a storage type"},
        {"turbo3:", "type_k: \"turbo3:\": \"\" is neither TYPE=FIRST+LAST"},
        {"turbo3:forced", "\"forced\" is neither TYPE=FIRST+LAST"},
        {"turbo3:force:", "\"\" is neither TYPE=FIRST+LAST"},
        {"turbo3:q9=1+1", "\"q9\" is not a storage type"},
        {"turbo3:q8_0=1", "\"1\" is not FIRST+LAST"},
        {"turbo3:q8_0=1+", "\"1+\" is not FIRST+LAST"},
        {"turbo3:q8_0=+1", "\"+1\" is not FIRST+LAST"},
        {"turbo3:q8_0=-1+1", "\"-1+1\" is not FIRST+LAST"},
        {"turbo3:q8_0=1+1+1", "\"1+1+1\" is not FIRST+LAST"},
        {"turbo3:q8_0=1+9999999", "is not FIRST+LAST"},
        {"turbo3:q8_0=2+2:force", "\"2+2:force\" is not FIRST+LAST"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct kv_type_choice got;
        assert_int_equal(kv_type_read("type_k", cases[i][0], &got, &err), PITH_INVALID);
        if (strstr(err.message, cases[i][1]) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i][1]);
        if (strstr(cases[i][1], "storage type") != NULL)
            assert_non_null(strstr(err.message, names));
    }
    struct kv_geometry g = mixed;
    struct kv_type_choice k;
    assert_int_equal(kv_geometry_read_types(&g, "f16", "turbo3:force", &k, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "type_v: \"turbo3:force\""));
    g.edge_k.first = 6;
    assert_int_equal(kv_geometry_check(&g, &err), PITH_INVALID);
    assert_string_equal(err.message,
                        "type_k: the first 6 and the last 1 layers do not fit in 6 layers");
    g = mixed;
    g.edge_v.type = KV_N_TYPE;
    assert_int_equal(kv_geometry_check(&g, &err), PITH_INVALID);
    assert_string_equal(err.message, "type_v: 8 is no storage type");
}

/* ---- classes ---- */

TEST(layers_have_their_types)
{
    static const enum kv_type k[N_LAYER] = {KV_TYPE_F16,  KV_TYPE_F16,  KV_TYPE_Q4_0,
                                            KV_TYPE_Q4_0, KV_TYPE_Q4_0, KV_TYPE_F16};
    static const enum kv_type v[N_LAYER] = {KV_TYPE_Q8_0,   KV_TYPE_TURBO3, KV_TYPE_TURBO3,
                                            KV_TYPE_TURBO3, KV_TYPE_Q8_0,   KV_TYPE_Q8_0};
    static const size_t row_k[] = {[KV_TYPE_F16] = 128, [KV_TYPE_Q4_0] = 36};
    static const size_t row_v[] = {[KV_TYPE_Q8_0] = 68, [KV_TYPE_TURBO3] = 26};
    struct kv_cache *cache = kv_check_cache(&mixed, 50);
    int64_t sum = 0;
    size_t most = 0;
    assert_int_equal(cache->n_kind, 4);
    for (int32_t l = 0; l < N_LAYER; l++) {
        const struct kv_class *kind = kv_class_of(cache->kind, &mixed, l);
        assert_int_equal(kv_layer_type_k(&mixed, l), k[l]);
        assert_int_equal(kv_layer_type_v(&mixed, l), v[l]);
        assert_int_equal(kind->type_k, k[l]);
        assert_int_equal(kind->type_v, v[l]);
        assert_int_equal(kv_part_bytes(&kind->k) + kv_part_bytes(&kind->v),
                         row_k[k[l]] + row_v[v[l]]);
        assert_int_equal(kv_layer_page_bytes(&mixed, l), kind->layout.bytes);
        sum += N_HEAD * (int64_t)kind->layout.bytes;
        most = kind->layout.bytes > most ? kind->layout.bytes : most;
    }
    assert_int_equal(kv_page_bytes(&mixed), most);
    assert_int_equal(kv_bytes_for_tokens(&mixed, 1), sum);
    assert_int_equal(kv_bytes_for_tokens(&mixed, 17), 2 * sum);
    assert_true(kv_bytes_for_tokens(&mixed, INT64_MAX) == INT64_MAX);
    kv_cache_free(cache);
    assert_int_equal(kv_cache_create(&mixed, sum - 1, &cache, &err), PITH_INVALID);
    assert_int_equal(kv_cache_create(&mixed, (int64_t)1 << 46, &cache, &err), PITH_INVALID);
    check(kv_cache_create(&mixed, sum, &cache, &err), &err);
    struct kv_seq *seq;
    check(kv_seq_create(cache, &seq, &err), &err);
    check(kv_seq_reserve(seq, 16, &err), &err);
    assert_int_equal(kv_seq_free_bytes(seq), 0);
    assert_int_equal(kv_seq_reserve(seq, 17, &err), PITH_KV_FULL);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- memory ---- */

/* Bytes of a cache's pools that the system has given memory. */
static int64_t resident(const struct kv_cache *cache)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int64_t bytes = 0;
    for (int32_t i = 0; i < cache->n_kind; i++) {
        size_t n = (cache->kind[i].pool_size + page - 1) / page;
        unsigned char *in = calloc(n, 1);
        assert_int_equal(mincore(pi_cpu_ptr(cache->kind[i].pool), cache->kind[i].pool_size, in), 0);
        for (size_t j = 0; j < n; j++)
            bytes += in[j] & 1 ? (int64_t)page : 0;
        free(in);
    }
    return bytes;
}

/* Lanes of the first layers grow to the budget's limit and lose all entries, then lanes of the last
   layers do, over and over. When one class needs memory, the other has given its unused memory back
   to the system. */
TEST(memory_is_given_back)
{
    struct kv_geometry g = mixed;
    struct kv_cache *cache;
    float row[DIM] = {1.0f};
    int64_t budget = (int64_t)24 << 20;
    g.page_len = 64;
    check(kv_cache_create(&g, budget, &cache, &err), &err);
    for (int32_t i = 0; i < cache->n_kind; i++) /* huge pages make residence coarser */
        madvise(pi_cpu_ptr(cache->kind[i].pool), cache->kind[i].pool_size, MADV_NOHUGEPAGE);
    for (int turn = 0; turn < 6; turn++) {
        int32_t layer = turn % 3 * 2, n = 0;
        struct kv_seq *seq;
        check(kv_seq_create(cache, &seq, &err), &err);
        while (kv_free_bytes(cache) >= kv_bytes_for_tokens(&g, 1)) {
            check(kv_seq_reserve(seq, 64, &err), &err);
            for (int32_t h = 0; h < N_HEAD; h++)
                kv_seq_append(seq, layer, h, n, 64, row, 0, row, 0);
            kv_seq_trim(seq); /* the other lanes hold nothing */
            n += 64;
        }
        kv_check_account(cache, pi_mem_used(PI_MEM_TABLE) - cache->table_bytes);
        assert_true(cache->used > budget * 9 / 10);
        /* To the page of the system at the ends of each run of pages. */
        assert_true(resident(cache) < budget + budget / 50);
        kv_seq_free(seq);
    }
    kv_cache_free(cache);
}

/* ---- account ---- */

/* Lanes of different lengths, forks and cuts. The account is exact after every step. A step that
   does not fit says so and changes nothing; one that fits succeeds. */
TEST(the_account_holds_through_random_steps)
{
    struct kv_cache *cache = kv_check_cache(&mixed, 90);
    struct kv_seq *seq[3] = {0};
    int32_t next[3] = {0};
    int64_t other = pi_mem_used(PI_MEM_TABLE) - cache->table_bytes;
    uint64_t rng = 3;
    int n_full = 0, n_fork = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(kv_seq_create(cache, &seq[i], NULL), PITH_OK);
    for (int t = 0; t < 1500; t++) {
        int i = (int)rng_below(&rng, 3), from = (int)rng_below(&rng, 3);
        int32_t l = (int32_t)rng_below(&rng, N_LAYER), h = (int32_t)rng_below(&rng, N_HEAD);
        int32_t slots[512], n = 0, len = kv_lane_len(seq[i], l, h);
        uint64_t digest = kv_check_digest(cache);
        switch (rng_below(&rng, 6)) {
        case 0:
        case 1:
        case 2:
            n = 1 + (int32_t)rng_below(&rng, 40);
            if (next[i] + n > 512)
                break;
            if (kv_check_append(seq[i], (uint64_t)t, next[i], n) == PITH_OK) {
                next[i] += n;
                break;
            }
            n_full++;
            assert_true(kv_check_digest(cache) == digest);
            break;
        case 3:
            for (int32_t s = 0; s < len; s++)
                if (rng_below(&rng, 3) != 0)
                    slots[n++] = s;
            if (kv_seq_compact(seq[i], l, h, slots, n, NULL) != PITH_OK)
                assert_true(kv_check_digest(cache) == digest);
            break;
        case 4:
            next[i] = (int32_t)rng_below(&rng, (uint64_t)next[i] + 1);
            kv_seq_truncate(seq[i], next[i]);
            break;
        default:
            if (from == i || rng_below(&rng, 3) != 0)
                break;
            kv_seq_free(seq[i]);
            assert_int_equal(kv_seq_fork(seq[from], &seq[i], NULL), PITH_OK);
            kv_check_same(seq[from], seq[i]);
            next[i] = next[from];
            n_fork++;
            break;
        }
        kv_check_account(cache, other);
    }
    assert_true(n_full > 20 && n_fork > 20);
    for (int i = 0; i < 3; i++)
        kv_seq_free(seq[i]);
    assert_int_equal(cache->used, 0);
    kv_cache_free(cache);
}

/* Charges of shared pages are bytes, too: compacting everything takes no more than was said. */
TEST(charges_are_enough)
{
    static const int32_t rest[] = {3, 5, 17, 20, 30};
    struct kv_cache *cache = kv_check_cache(&mixed, 200);
    struct kv_seq *a, *b;
    check(kv_seq_create(cache, &a, &err), &err);
    check(kv_check_append(a, 1, 0, 40), &err);
    check(kv_seq_fork(a, &b, &err), &err);
    int64_t held = cache->used, charge = kv_seq_charge_copies(b).all;
    kv_seq_clear_charges(b);
    assert_int_equal(charge, kv_bytes_for_tokens(&mixed, 40));
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            int64_t before = kv_seq_free_bytes(b);
            check(kv_seq_compact(b, l, h, rest, 5, &err), &err);
            assert_int_equal(before - kv_seq_free_bytes(b), kv_layer_page_bytes(&mixed, l));
        }
    assert_true(cache->used - held <= charge);
    kv_check_account(cache, pi_mem_used(PI_MEM_TABLE) - cache->table_bytes);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
}

/* ---- failures ---- */

TEST(any_allocation_may_fail)
{
    int64_t tables = pi_mem_used(PI_MEM_TABLE), pool = pi_mem_used(PI_MEM_KV);
    pith_status status = PITH_NOMEM;
    int64_t n = 0;
    while (status != PITH_OK) {
        struct kv_cache *cache = NULL;
        struct kv_seq *seq = NULL;
        pi_mem_fail_at(++n, false);
        status = kv_cache_create(&mixed, 4 << 20, &cache, &err);
        if (status == PITH_OK)
            status = kv_seq_create(cache, &seq, &err);
        if (status == PITH_OK)
            status = kv_seq_reserve(seq, 20, &err);
        pi_mem_fail_at(0, false);
        assert_true(status == PITH_OK || status == PITH_NOMEM);
        kv_seq_free(seq);
        kv_cache_free(cache);
        assert_int_equal(pi_mem_used(PI_MEM_TABLE), tables);
        assert_int_equal(pi_mem_used(PI_MEM_KV), pool);
    }
    assert_true(n > 9); /* four classes, each a pool and its lists */
}

/* ---- snapshots ---- */

TEST(a_file_holds_layers_of_their_own_types)
{
    char path[64];
    struct kv_cache *cache = kv_check_cache(&mixed, 200);
    struct kv_seq *seq, *loaded;
    void *extra;
    size_t size;
    snprintf(path, sizeof(path), "/tmp/pith-layers-%ld", (long)getpid());
    check(kv_seq_create(cache, &seq, &err), &err);
    check(kv_check_append(seq, 1, 0, 50), &err);
    check(kv_seq_compact(seq, 3, 1, (const int32_t[]){1, 4, 20, 44}, 4, &err), &err);
    check(kv_seq_save(seq, "x", 1, path, &err), &err);
    for (int i = 0; i < 2; i++) { /* with another index, and other edges that say the same */
        struct kv_geometry g = mixed;
        g.index = i ? KV_INDEX_ROWS | KV_INDEX_NORM : 0;
        struct kv_cache *other = kv_check_cache(&g, 200);
        check(kv_seq_load(other, path, &loaded, &extra, &size, &err), &err);
        kv_check_same(seq, loaded);
        kv_check_account(other, pi_mem_used(PI_MEM_TABLE) - other->table_bytes);
        kv_seq_free(loaded);
        pi_mem_free(extra);
        kv_cache_free(other);
    }
    struct kv_geometry g = mixed;
    g.edge_v.first = 2;
    struct kv_cache *other = kv_check_cache(&g, 200);
    assert_int_equal(kv_seq_load(other, path, &loaded, &extra, &size, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "layer 1: type_v is turbo3, and the engine's is q8_0"));
    kv_cache_free(other);
    check(kv_cache_create(&mixed, cache->used - 1, &other, &err), &err);
    assert_int_equal(kv_seq_load(other, path, &loaded, &extra, &size, &err), PITH_KV_FULL);
    kv_cache_free(other);
    check(kv_cache_create(&mixed, cache->used, &other, &err), &err);
    check(kv_seq_load(other, path, &loaded, &extra, &size, &err), &err);
    assert_int_equal(kv_seq_free_bytes(loaded), 0);
    pi_mem_free(extra);
    kv_seq_free(loaded);
    kv_cache_free(other);
    kv_seq_free(seq);
    kv_cache_free(cache);
    unlink(path);
}

/* ---- budgets of keep ---- */

/* A budget of bytes is the largest number of entries whose pages take no more, however the layers
   share it. */
TEST(byte_budgets_are_exact)
{
    static const char *const texts[] = {"keydiff:budget=%lld,slack=16",
                                        "keydiff:budget=%lld,slack=16,layers=pyramid:4",
                                        "keydiff:budget=%lld,slack=16,layers=1/2/3/4/5/6"};
    for (size_t t = 0; t < PI_LEN(texts); t++)
        for (int64_t bytes = 200000; bytes < 2000000; bytes += 143217) {
            char text[96];
            struct keep_config c;
            snprintf(text, sizeof(text), texts[t], (long long)bytes);
            char *end = strstr(text, ",slack");
            memmove(end + 1, end, strlen(end) + 1);
            *end = 'B';
            check(keep_config_parse(text, &c, &err), &err);
            check(keep_config_fit(&c, &mixed, &err), &err);
            assert_true(keep_bytes_at(&c, &mixed, INT32_MAX) <= bytes);
            c.n_budget += t == 0 ? mixed.page_len : 1;
            assert_true(keep_bytes_at(&c, &mixed, INT32_MAX) > bytes);
        }
}
