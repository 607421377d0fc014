/*
 * test_snapshot.c - snapshots: a loaded sequence equals the saved one, for lanes with any history.
 * The reader refuses every damaged, foreign or forged file, and a failure leaves no trace.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/os.h"
#include "file/sum.h"
#include "kv/snapshot.h"
#include "kv_by_page.h"
#include "kv_check.h"
#include "testing.h"
#include "kv_shape.h"

#define N_PAGE 120

static const struct kv_geometry base_geometry =
    KV_SHAPE(2, 2, 32, 64, 16, KV_TYPE_F16, KV_TYPE_Q8_0);

/* A path of this process, in a directory that is its own. */
static const char *scratch_dir(void)
{
    static char dir[] = "/tmp/pith-snapshot-XXXXXX";
    static bool made;
    if (!made)
        assert_non_null(mkdtemp(dir));
    made = true;
    return dir;
}

static void scratch_path(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", scratch_dir(), name);
}

/* Two sequences with every special case. *a shares pages with the other, was compacted in one lane,
   and reads pages at a delta in another, one page twice. A third lane is empty, and pages are
   reserved.
 */
static void make_pair(struct kv_cache *cache, struct kv_seq **a, struct kv_seq **b)
{
    static const int32_t some[] = {0,  2,  3,  4,  8,  16, 20, 21, 30,
                                   31, 33, 40, 50, 51, 52, 53, 60, 66};
    assert_int_equal(kv_seq_create(cache, a, NULL), PITH_OK);
    assert_int_equal(kv_check_append(*a, 7, 0, 70), PITH_OK);
    assert_int_equal(kv_seq_fork(*a, b, NULL), PITH_OK);
    assert_int_equal(kv_check_append(*b, 8, 70, 20), PITH_OK);
    assert_int_equal(kv_seq_compact(*a, 0, 1, some, PI_LEN(some), NULL), PITH_OK);
    assert_int_equal(page_share(*a, 1, 0, 2, *b, 1, 16, NULL), PITH_OK);
    assert_int_equal(page_share(*a, 1, 0, 3, *a, 1, 32, NULL), PITH_OK);
    assert_int_equal(kv_seq_compact(*a, 1, 0, some, PI_LEN(some), NULL), PITH_OK);
    assert_int_equal(page_share(*b, 1, 0, 2, *b, 1, 16, NULL), PITH_OK);
    assert_int_equal(kv_seq_compact(*a, 1, 1, NULL, 0, NULL), PITH_OK);
    assert_int_equal(kv_seq_reserve(*a, 40, NULL), PITH_OK);
}

static uint8_t *read_bytes(const char *path, size_t *size)
{
    struct pi_file file = {0};
    assert_int_equal(pi_file_map(path, &file, NULL), PITH_OK);
    uint8_t *bytes = malloc(file.size);
    memcpy(bytes, file.data, file.size);
    *size = file.size;
    pi_file_unmap(&file);
    return bytes;
}

/* The bytes of *a of make_pair in a cache of geometry g, perhaps with a folded page and closed
   ones; extra is "tokens". */
static uint8_t *sample_of(const struct kv_geometry *g, bool counts, size_t *size)
{
    char path[128];
    struct kv_cache *cache = kv_check_cache(g, N_PAGE);
    struct kv_seq *a, *b;
    scratch_path(path, sizeof(path), "sample");
    make_pair(cache, &a, &b);
    if (counts) {
        assert_int_equal(page_fold(a, 0, 0, 2, 0, NULL), PITH_OK);
        pages_close(a);
    }
    assert_int_equal(kv_seq_save(a, "tokens", 6, path, NULL), PITH_OK);
    uint8_t *bytes = read_bytes(path, size);
    unlink(path);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
    return bytes;
}

static uint8_t *sample_bytes(const struct kv_geometry *g, size_t *size)
{
    return sample_of(g, false, size);
}

static void put_le(uint8_t *p, uint64_t value, int n_byte)
{
    for (int i = 0; i < n_byte; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

/* Makes the size and the checksum right, so that the checks behind them are reached. */
static void seal(uint8_t *bytes, size_t size)
{
    if (size < KV_SNAPSHOT_HEADER_SIZE + KV_SNAPSHOT_SUM_SIZE)
        return;
    put_le(bytes + 16, size, 8);
    put_le(bytes + size - 8, pi_sum_of(bytes, size - 8), 8);
}

/* ---- round trips ---- */

static void round_trip(const struct kv_seq *seq, struct kv_cache *target, const char *path,
                       const char *again)
{
    struct kv_seq *loaded = NULL;
    void *extra = NULL;
    size_t extra_size = 0, size, size_again;
    assert_int_equal(kv_seq_save(seq, "some bytes", 10, path, NULL), PITH_OK);
    assert_int_equal(kv_seq_load(target, path, &loaded, &extra, &extra_size, NULL), PITH_OK);
    assert_int_equal(extra_size, 10);
    assert_memory_equal(extra, "some bytes", 10);
    kv_check_account(target, pi_mem_used(PI_MEM_TABLE) - target->table_bytes);
    kv_check_same(seq, loaded);
    assert_int_equal(kv_seq_save(loaded, extra, extra_size, again, NULL), PITH_OK);
    uint8_t *bytes = read_bytes(path, &size), *bytes_again = read_bytes(again, &size_again);
    assert_int_equal(size, size_again);
    assert_memory_equal(bytes, bytes_again, size);
    /* It goes on like any other. */
    assert_int_equal(kv_check_append(loaded, 9, 200, 17), PITH_OK);
    kv_seq_truncate(loaded, 10);
    kv_check_account(target, pi_mem_used(PI_MEM_TABLE) - target->table_bytes);
    kv_seq_free(loaded);
    pi_mem_free(extra);
    free(bytes);
    free(bytes_again);
}

TEST(loads_what_was_saved)
{
    static const int32_t page_lens[] = {16, 32, 64};
    char path[128], again[128];
    scratch_path(path, sizeof(path), "one");
    scratch_path(again, sizeof(again), "two");
    for (int t = 0; t < KV_N_TYPE * KV_N_TYPE; t++) {
        struct kv_geometry g = base_geometry;
        g.type_k = (enum kv_type)(t % KV_N_TYPE);
        g.type_v = (enum kv_type)(t / KV_N_TYPE);
        if (t % 3 == 0) /* layers of their own types */
            g.edge_k = (struct kv_edge){(enum kv_type)((t + 2) % KV_N_TYPE), 1, 0};
        if (t % 3 != 1)
            g.edge_v = (struct kv_edge){(enum kv_type)((t + 4) % KV_N_TYPE), 0, 1};
        struct kv_cache *cache = kv_check_cache(&g, N_PAGE), *other = kv_check_cache(&g, N_PAGE);
        struct kv_seq *a, *b;
        make_pair(cache, &a, &b);
        round_trip(a, other, path, again);
        round_trip(b, other, path, again);
        round_trip(a, cache, path, again);
        kv_seq_free(a);
        kv_seq_free(b);
        kv_cache_free(cache);
        kv_cache_free(other);
    }
    for (size_t i = 0; i < PI_LEN(page_lens); i++) {
        struct kv_geometry g = base_geometry;
        g.page_len = page_lens[i];
        struct kv_cache *cache = kv_check_cache(&g, N_PAGE);
        struct kv_seq *seq;
        assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
        round_trip(seq, cache, path, again); /* empty */
        assert_int_equal(kv_check_append(seq, 3, 0, 100), PITH_OK);
        round_trip(seq, cache, path, again);
        kv_seq_free(seq);
        kv_cache_free(cache);
    }
    unlink(path);
    unlink(again);
}

/* A page that a lane names twice is stored once. Slots without an entry are zero, for any contents
   of the pool there. */
TEST(file_holds_no_more_than_the_sequence)
{
    char path[128];
    scratch_path(path, sizeof(path), "sizes");
    struct kv_geometry g = KV_SHAPE(1, 1, 32, 32, 16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 8);
    struct kv_seq *seq;
    size_t size, fixed = KV_SNAPSHOT_HEADER_SIZE + 5 * KV_SNAPSHOT_SECTION_SIZE + 4 + 8;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    assert_int_equal(kv_check_append(seq, 1, 0, 40), PITH_OK);
    assert_int_equal(page_share(seq, 0, 0, 1, seq, 0, 16, NULL), PITH_OK);
    kv_seq_truncate(seq, 33);
    assert_int_equal(kv_seq_save(seq, NULL, 0, path, NULL), PITH_OK);
    uint8_t *bytes = read_bytes(path, &size);
    assert_int_equal(size, fixed + 3 * KV_SNAPSHOT_REF_SIZE + 2 * cache->kind[0].layout.bytes);
    struct kv_snapshot s;
    assert_int_equal(kv_snapshot_parse("file", bytes, size, &s, NULL), PITH_OK);
    const uint8_t *tail = s.pages + cache->kind[0].layout.bytes;
    for (size_t i = 0; i < cache->kind[0].layout.bytes; i++) {
        size_t slot = i < cache->kind[0].layout.v        ? i / 128
                      : i < cache->kind[0].layout.stored ? (i - cache->kind[0].layout.v) / 128
                                                         : (i - cache->kind[0].layout.stored) / 4;
        if (slot > 0)
            assert_int_equal(tail[i], 0);
    }
    free(bytes);
    kv_seq_free(seq);
    kv_cache_free(cache);
    unlink(path);
}

/* ---- files that must be refused ---- */

/* Loads the bytes into the cache. After a failure it asserts that the cache is unchanged, otherwise
   that the account is right and that the sequence works. */
static pith_status try_load(struct kv_cache *cache, const uint8_t *bytes, size_t size,
                            pith_error *why)
{
    uint64_t digest = kv_check_digest(cache);
    int64_t before = pi_mem_used(PI_MEM_OTHER), tables = pi_mem_used(PI_MEM_TABLE);
    struct kv_seq *seq = NULL;
    void *extra = NULL;
    size_t extra_size;
    pith_status status =
        kv_snapshot_load(cache, "file", bytes, size, &seq, &extra, &extra_size, why);
    if (status == PITH_OK) {
        kv_check_account(cache, pi_mem_used(PI_MEM_TABLE) - cache->table_bytes);
        kv_seq_truncate(seq, 20);
        kv_seq_free(seq);
        pi_mem_free(extra);
    } else {
        assert_null(seq);
        assert_null(extra);
        assert_true(kv_check_digest(cache) == digest);
    }
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
    assert_int_equal(pi_mem_used(PI_MEM_TABLE), tables);
    return status;
}

TEST(foreign_shape_is_named)
{
    static const struct {
        struct kv_geometry g;
        const char *names;
    } cases[] = {
        {KV_SHAPE(4, 2, 32, 64, 16, KV_TYPE_F16, KV_TYPE_Q8_0),
         "n_layer is 2, and the engine's is 4"},
        {KV_SHAPE(2, 1, 32, 64, 16, KV_TYPE_F16, KV_TYPE_Q8_0),
         "n_head is 2, and the engine's is 1"},
        {KV_SHAPE(2, 2, 33, 64, 16, KV_TYPE_F16, KV_TYPE_Q8_0),
         "dim_k is 32, and the engine's is 33"},
        {KV_SHAPE(2, 2, 32, 32, 16, KV_TYPE_F16, KV_TYPE_Q8_0),
         "dim_v is 64, and the engine's is 32"},
        {KV_SHAPE(2, 2, 32, 64, 64, KV_TYPE_F16, KV_TYPE_Q8_0),
         "page_len is 16, and the engine's is 64"},
        {KV_SHAPE(2, 2, 32, 64, 16, KV_TYPE_Q8_0, KV_TYPE_Q8_0),
         "type_k is f16, and the engine's is q8_0"},
        {KV_SHAPE(2, 2, 32, 64, 16, KV_TYPE_F16, KV_TYPE_F32),
         "type_v is q8_0, and the engine's is f32"},
    };
    size_t size;
    uint8_t *bytes = sample_bytes(&base_geometry, &size);
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        err = (pith_error){0};
        struct kv_cache *cache = kv_check_cache(&cases[i].g, 60);
        assert_int_equal(try_load(cache, bytes, size, &err), PITH_INVALID);
        assert_non_null(strstr(err.message, cases[i].names));
        kv_cache_free(cache);
    }
    free(bytes);
}

TEST(a_full_pool_or_no_memory_changes_nothing)
{
    size_t size;
    uint8_t *bytes = sample_bytes(&base_geometry, &size);
    struct kv_snapshot s;
    assert_int_equal(kv_snapshot_parse("file", bytes, size, &s, NULL), PITH_OK);
    struct kv_cache *cache = kv_check_cache(&base_geometry, s.n_page - 1);
    assert_int_equal(try_load(cache, bytes, size, &err), PITH_KV_FULL);
    kv_cache_free(cache);
    cache = kv_check_cache(&base_geometry, s.n_page);
    int n_failed = 0;
    pith_status status;
    do {
        pi_mem_fail_at(n_failed + 1, false);
        status = try_load(cache, bytes, size, &err);
        pi_mem_fail_at(0, false);
        assert_true(status == PITH_OK || status == PITH_NOMEM);
    } while (status != PITH_OK && n_failed++ < 100);
    assert_int_equal(n_failed, 5); /* sequence, lanes, page list, caller's block, tables */
    kv_cache_free(cache);
    free(bytes);
}

/* Each forgery of a valid file has its own sentence. at is an offset from the named part. */
TEST(each_forged_number_has_its_sentence)
{
    size_t size;
    uint8_t *good = sample_bytes(&base_geometry, &size);
    struct kv_snapshot s;
    assert_int_equal(kv_snapshot_parse("file", good, size, &s, NULL), PITH_OK);
    size_t lane = (size_t)(s.lane - good), refs = (size_t)(s.refs - good);
    size_t pages = (size_t)(s.pages - good), extra = (size_t)(s.extra - good);
    const struct {
        size_t at;
        uint64_t value;
        int n_byte;
        pith_status status;
        const char *says;
    } cases[] = {
        {0, 'p', 1, PITH_FORMAT, "not a snapshot"},
        {8, 0, 4, PITH_UNSUPPORTED, "version 0"},
        {8, 7, 4, PITH_UNSUPPORTED, "version 7; this build reads 8"},
        {8, 9, 4, PITH_UNSUPPORTED, "version 9"},
        {12, 80, 4, PITH_FORMAT, "header_size: 80 is not 124"},
        {12, 81, 4, PITH_FORMAT, "header_size: 81"},
        {24, 0, 4, PITH_FORMAT, "n_layer: 0"},
        {28, 0xffffffff, 4, PITH_FORMAT, "n_head: -1"},
        {32, 1u << 30, 4, PITH_FORMAT, "dim_k: 1073741824"},
        {36, 65, 4, PITH_FORMAT, "head size 65"},
        {40, 17, 4, PITH_FORMAT, "page_len: 17"},
        {44, 8, 4, PITH_FORMAT, "type_k and type_v: 8"},
        {48, 0x80000000, 4, PITH_FORMAT, "type_k and type_v: 1 and -2147483648"},
        {52, 0xffffffff, 4, PITH_FORMAT, "n_page: 4294967295"},
        {52, 1, 4, PITH_FORMAT, "section PAGE"},
        {56, UINT64_MAX, 8, PITH_FORMAT, "section REFS"},
        {56, (uint64_t)1 << 62, 8, PITH_FORMAT, "section REFS"},
        {64, 0, 8, PITH_FORMAT, "page_bytes: 0"},
        {72, UINT64_MAX, 8, PITH_FORMAT, "section EXTR"},
        {72, 5, 8, PITH_FORMAT, "section EXTR"},
        {lane - 12, 'X', 1, PITH_FORMAT, "section LANE is not where"},
        {lane - 8, UINT64_MAX, 8, PITH_FORMAT, "section LANE: 18446744073709551615 bytes"},
        {lane - 8, 15, 8, PITH_FORMAT, "section LANE: 15 bytes are not 4 items"},
        {lane, 0xffffffff, 4, PITH_FORMAT, "lane 0: 2147483647 table entries"},
        {lane + 12, 1, 4, PITH_FORMAT, "lane 3: 1 table entries, and 0 are left"},
        {lane + 8, 1, 4, PITH_FORMAT, "the lanes have"},
        {refs, 1, 4, PITH_FORMAT, "table entry 0: page 1 is out of order"},
        {refs, 0xffffffff, 4, PITH_FORMAT, "page -1 is out of order"},
        {refs + 80, 0, 4, PITH_FORMAT, "table entry 5: page 0 is out of order"},
        {refs + 4, 0xffffffff, 4, PITH_FORMAT, "table entry 0: position 0"},
        {refs + 4, 0x7ffffff8, 4, PITH_FORMAT, "table entry 0: position 8"},
        {refs + 4, 0x80000000, 4, PITH_FORMAT, "table entry 0: position 0"},
        {refs + 8, 0, 4, PITH_FORMAT, "table entry 0: 0 entries"},
        {refs + 8, 17, 4, PITH_FORMAT, "table entry 0: 17 entries"},
        {pages + s.kind[0].layout.stored, 0xffffffff, 4, PITH_FORMAT, "position -1 of entry 0"},
        {pages + s.kind[0].layout.stored + 8, 1, 4, PITH_FORMAT, "position 1 of entry 2"},
        {pages + s.kind[0].layout.k + 2, 0x7c00, 2, PITH_FORMAT, "page 0: its keys"},
        {pages + s.kind[0].layout.k + 1022, 0xfe01, 2, PITH_FORMAT, "page 0: its keys"},
        {pages + s.kind[0].layout.v + 1023, 0x80, 1, PITH_FORMAT, "page 0: its values"},
        {pages + s.kind[0].layout.v_scale + 62, 0xffff, 2, PITH_FORMAT, "page 0: its values"},
        {pages + s.kind[0].layout.bytes + s.kind[0].layout.v_scale, 0x7c00, 2, PITH_FORMAT,
         "page 1: its values"},
        {extra - 12, 'T', 1, PITH_FORMAT, "section EXTR is not where"},
    };
    struct kv_cache *cache = kv_check_cache(&base_geometry, N_PAGE);
    assert_int_equal(try_load(cache, good, size, NULL), PITH_OK);
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        uint8_t *bytes = malloc(size);
        err = (pith_error){0};
        memcpy(bytes, good, size);
        put_le(bytes + cases[i].at, cases[i].value, cases[i].n_byte);
        seal(bytes, size);
        pith_status status = try_load(cache, bytes, size, &err);
        if (status != cases[i].status || strstr(err.message, cases[i].says) == NULL)
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.message, cases[i].says);
        free(bytes);
    }
    kv_cache_free(cache);
    free(good);
}

/* The same of counts, closed pages and types at the ends. */
TEST(each_forged_count_has_its_sentence)
{
    size_t size;
    uint8_t *good = sample_of(&base_geometry, true, &size);
    struct kv_snapshot s;
    assert_int_equal(kv_snapshot_parse("file", good, size, &s, NULL), PITH_OK);
    assert_int_equal(kv_snapshot_ref_at(&s, 0).count, 2);
    assert_true(kv_snapshot_ref_at(&s, 3).closed);
    size_t refs = (size_t)(s.refs - good);
    const struct {
        size_t at;
        uint64_t value;
        const char *says; /* NULL: it is as good */
    } cases[] = {
        {refs + 12, 0, "table entry 0: count 0 is not in 1..65536"},
        {refs + 12, 65537, "count 65537"},
        {refs + 12, 0x80000000, "count -2147483648"},
        {refs + 12, 65536, NULL},
        {refs + 12, 1, NULL},
        {refs + 8, 0x80000010, "table entry 0: a full page is closed"},
        {refs + 8, 0x80000011, "table entry 0: 17 entries"},
        {refs + 8, 0x80000000, "table entry 0: 0 entries"},
        {refs + 8, 0x8000000f, NULL},
        {refs + 3 * 16 + 8, 6, NULL},
        {104, 2, "edges and groups: number 6 is 2, not 1"},
    };
    struct kv_cache *cache = kv_check_cache(&base_geometry, N_PAGE);
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        uint8_t *bytes = malloc(size);
        err = (pith_error){0};
        memcpy(bytes, good, size);
        put_le(bytes + cases[i].at, cases[i].value, 4);
        seal(bytes, size);
        pith_status status = try_load(cache, bytes, size, &err);
        assert_int_equal(status, cases[i].says == NULL ? PITH_OK : PITH_FORMAT);
        if (cases[i].says != NULL && strstr(err.message, cases[i].says) == NULL)
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.message, cases[i].says);
        free(bytes);
    }
    kv_cache_free(cache);
    free(good);
}

/* One change to a copy of the bytes: a bit, a byte, a number, a cut, an insertion, a swap of
   ranges. Returns the new size, at most size + 64. */
static size_t mutate(uint8_t *bytes, size_t size, uint64_t *rng)
{
    static const uint64_t numbers[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX, 16};
    size_t at = rng_below(rng, 2) ? rng_below(rng, size) : rng_below(rng, pi_min(size, 400));
    size_t n = 1 + rng_below(rng, 64);
    switch (rng_below(rng, 6)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << rng_below(rng, 8));
        return size;
    case 1:
        bytes[at] = (uint8_t)(bytes[at] + 1 + rng_below(rng, 255));
        return size;
    case 2:
        if (at + 8 <= size)
            put_le(bytes + at, numbers[rng_below(rng, PI_LEN(numbers))], rng_below(rng, 2) ? 4 : 8);
        return size;
    case 3:
        return at;
    case 4:
        memmove(bytes + at + n, bytes + at, size - at);
        return size + n;
    default:
        n = (size_t)pi_min((int64_t)n, (int64_t)(size - at));
        memmove(bytes + at, bytes + at + n, size - at - n);
        return size - n;
    }
}

/* A thousand damaged files, none of which may load. Then a thousand with correct size and checksum,
   which may load only as a sound sequence. */
static void check_mutations(bool counts)
{
    size_t size;
    uint8_t *good = sample_of(&base_geometry, counts, &size);
    struct kv_cache *cache = kv_check_cache(&base_geometry, N_PAGE);
    uint64_t rng = 11;
    int n_loaded = 0;
    for (int i = 0; i < 2000; i++) {
        uint8_t *work = malloc(size + 64);
        memcpy(work, good, size);
        size_t new_size = mutate(work, size, &rng);
        bool same = new_size == size && memcmp(work, good, size) == 0;
        uint8_t *bytes = malloc(new_size + 1); /* exact, so that a sanitizer sees the end */
        memcpy(bytes, work, new_size);
        free(work);
        if (i >= 1000)
            seal(bytes, new_size);
        pith_status status = try_load(cache, bytes, new_size, NULL);
        n_loaded += status == PITH_OK && !same;
        if (i < 1000 && !same)
            assert_true(status == PITH_FORMAT || status == PITH_UNSUPPORTED);
        if (i == 999)
            assert_int_equal(n_loaded, 0);
        free(bytes);
    }
    assert_in_range(n_loaded, 1, 999); /* a changed value is still a value; most is structure */
    kv_cache_free(cache);
    free(good);
}

TEST(random_mutations_are_refused)
{
    check_mutations(false);
    check_mutations(true);
}

TEST(every_cut_is_refused)
{
    size_t size;
    struct kv_geometry g = KV_SHAPE(1, 1, 8, 8, 16, KV_TYPE_F16, KV_TYPE_F16);
    char path[128];
    scratch_path(path, sizeof(path), "cut");
    struct kv_cache *cache = kv_check_cache(&g, 4);
    struct kv_seq *seq;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    assert_int_equal(kv_check_append(seq, 1, 0, 20), PITH_OK);
    assert_int_equal(kv_seq_save(seq, "x", 1, path, NULL), PITH_OK);
    kv_seq_free(seq);
    uint8_t *good = read_bytes(path, &size);
    for (size_t n = 0; n < size; n++)
        for (int sealed = 0; sealed < 2; sealed++) {
            uint8_t *bytes = malloc(n + 1);
            memcpy(bytes, good, n);
            if (sealed)
                seal(bytes, n);
            assert_int_equal(try_load(cache, bytes, n, NULL), PITH_FORMAT);
            free(bytes);
        }
    assert_int_equal(try_load(cache, good, size, NULL), PITH_OK);
    assert_int_equal(truncate(path, (off_t)size - 1), 0);
    struct kv_seq *loaded;
    void *extra;
    assert_int_equal(kv_seq_load(cache, path, &loaded, &extra, &size, NULL), PITH_FORMAT);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(kv_seq_load(cache, path, &loaded, &extra, &size, NULL), PITH_FORMAT);
    unlink(path);
    assert_int_equal(kv_seq_load(cache, path, &loaded, &extra, &size, NULL), PITH_IO);
    free(good);
    kv_cache_free(cache);
}

/* ---- files that cannot be written ---- */

static int count_files(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* A limit on the size of files simulates a full disk. At every size the old file stays whole, and
   nothing else is left in the directory. */
TEST(a_full_disk_leaves_the_old_file)
{
    char path[128];
    size_t size, size_after;
    struct rlimit old, low;
    scratch_path(path, sizeof(path), "disk");
    struct kv_cache *cache = kv_check_cache(&base_geometry, N_PAGE);
    struct kv_seq *a, *b;
    make_pair(cache, &a, &b);
    assert_int_equal(kv_seq_save(a, NULL, 0, path, NULL), PITH_OK);
    uint8_t *before = read_bytes(path, &size);
    uint64_t digest = kv_check_digest(cache);
    int n_file = count_files(scratch_dir());
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (size_t limit = 0; limit < size; limit += limit < 200 ? 40 : 4999) {
        err = (pith_error){0};
        low = old;
        low.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        pith_status status = kv_seq_save(b, "longer", 6, path, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, PITH_IO);
        assert_non_null(strstr(err.message, path));
        uint8_t *after = read_bytes(path, &size_after);
        assert_int_equal(size_after, size);
        assert_memory_equal(before, after, size);
        free(after);
        assert_int_equal(count_files(scratch_dir()), n_file);
    }
    assert_true(kv_check_digest(cache) == digest);
    assert_int_equal(kv_seq_save(a, NULL, 0, "/nonexistent/file", NULL), PITH_IO);
    free(before);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
    unlink(path);
}

TEST(saving_without_memory_leaves_the_old_file)
{
    char path[128];
    scratch_path(path, sizeof(path), "memory");
    struct kv_cache *cache = kv_check_cache(&base_geometry, N_PAGE);
    struct kv_seq *a, *b;
    make_pair(cache, &a, &b);
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    int n_failed = 0;
    pith_status status;
    do {
        pi_mem_fail_at(n_failed + 1, false);
        status = kv_seq_save(a, NULL, 0, path, NULL);
        pi_mem_fail_at(0, false);
        assert_int_equal(access(path, F_OK) == 0, status == PITH_OK);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
    } while (status == PITH_NOMEM && n_failed++ < 100);
    assert_int_equal(status, PITH_OK);
    assert_int_equal(n_failed, 5); /* notes, a page, three file names */
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
    unlink(path);
}

/* ---- the checksum ---- */

/* Known values of XXH64 with seed 0; pieces of any size give the value of the whole. */
TEST(hashes_are_those_of_xxh64)
{
    assert_true(pi_sum_of("", 0) == 0xef46db3751d8e999u);
    assert_true(pi_sum_of("a", 1) == 0xd24ec4f1a98c6e5bu);
    assert_true(pi_sum_of("abc", 3) == 0x44bc2cf5ad770999u);
    assert_true(pi_sum_of("Nobody inspects the spammish repetition", 39) == 0xfbcea83c8a378bf1u);
    uint8_t bytes[300];
    uint64_t rng = 12;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)rng_next(&rng);
    for (size_t size = 0; size <= sizeof(bytes); size++) {
        struct pi_sum hash;
        pi_sum_start(&hash);
        for (size_t done = 0; done < size;) {
            size_t n = 1 + rng_below(&rng, pi_min(70, (int64_t)(size - done)));
            pi_sum_add(&hash, bytes + done, n);
            done += n;
        }
        assert_true(pi_sum_value(&hash) == pi_sum_of(bytes, size));
    }
}

static void remove_scratch(void)
{
    assert_int_equal(rmdir(scratch_dir()), 0);
}

TEST_GROUP(NULL, remove_scratch);
