/*
 * test_recall_file.c - the second tier's file. Entries that memory cannot hold go to the file and
 * come back unchanged, within its budget. Also full disks, lost directories, torn and foreign
 * files, and killed processes.
 */
#define _DEFAULT_SOURCE /* kill, truncate, usleep, RLIMIT_FSIZE */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/threads.h"
#include "file/sum.h"
#include "recall_rig.h"

static bool keep_fifth(int32_t lane, int32_t pos)
{
    return (pos + lane) % 5 == 0;
}

static int64_t file_size(void)
{
    struct stat st;
    assert_int_equal(stat(rig_path, &st), 0);
    return (int64_t)st.st_size;
}

/* Evicts n tokens in rounds of 100, most of them at once. */
static void fill(struct rig *r, int32_t n)
{
    for (int32_t i = 0; i < n; i += 100) {
        rig_append(r, 100);
        rig_evict(r, keep_fifth);
    }
    rig_evict(r, rig_keep_none);
}

static int64_t count_stored(const struct rig *r, int64_t *n_lost)
{
    struct recall_counts counts;
    recall_store_count(r->store, &counts);
    *n_lost = counts.n_lost;
    return counts.n_stored;
}

/* ---- there and back ---- */

static void check_there_and_back(enum kv_type type)
{
    struct kv_geometry g = rig_geometry(type);
    const struct recall_kv_options o = rig_file_options(&g, 2, 40);
    struct rig r;
    struct recall_counts counts;
    float q[4 * RIG_GROUP * RIG_DIM];
    const char *line;
    int32_t n_guest[RIG_LANES];
    rig_queries(1, 4, q);
    rig_make(&r, &g, 1000);
    rig_open(&r, &o, 1);
    fill(&r, 1000);
    recall_store_count(r.store, &counts);
    assert_int_equal(counts.n_stored, 1000 * RIG_LANES);
    assert_int_equal(counts.n_lost, 0);
    assert_int_equal(counts.ram_bytes, 2 * rig_page_bytes(&g));
    assert_int_equal(counts.file_bytes, 14 * rig_place_bytes(&g));
    assert_true(file_size() <= o.size);
    rig_recall(&r, q, 4, 1000, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        assert_int_equal(n_guest[l], 1000);
        rig_check_guests(&r, l);
    }
    rig_recall(&r, q, 4, 100, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        assert_int_equal(n_guest[l], 100);
        rig_check_guests(&r, l);
    }
    assert_int_equal(rig_log(&line), 0);
    rig_free(&r);
}

TEST_WITH(rig_make_path, rig_remove_path, pages_come_back_as_they_were)
{
    for (int type = 0; type < KV_N_TYPE; type++)
        check_there_and_back((enum kv_type)type);
}

TEST_WITH(rig_make_path, rig_remove_path, a_needle_is_found_in_the_file)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_file_options(&g, 2, 60);
    for (int32_t depth = 3; depth < 2000; depth += 230)
        for (o.score = RECALL_ATTENTION; o.score <= RECALL_BOUNDS; o.score++)
            rig_check_needle(&g, o, keep_fifth, depth);
}

/* No entry exceeds its page's bound, so a page that is not read holds nothing better. */
TEST_WITH(rig_make_path, rig_remove_path, promises_are_kept)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const int32_t scores[] = {RECALL_QUOKA, RECALL_BOUNDS, RECALL_ATTENTION};
    for (size_t i = 0; i < PI_LEN(scores); i++) {
        struct recall_kv_options o = rig_file_options(&g, 2, 40);
        struct rig r;
        struct recall_scorer s;
        float q[20 * RIG_GROUP * RIG_DIM], value[RECALL_PAGE_LEN];
        uint8_t buffer[RECALL_HEAD_SIZE + 65536];
        struct recall_head head;
        o.score = scores[i];
        rig_queries(11, 20, q);
        rig_make(&r, &g, 700);
        rig_open(&r, &o, 1);
        fill(&r, 700);
        const struct recall_shelf *shelf = &r.tier->shelf[2];
        const struct recall_query query = {.layer = 1,
                                           .n_tok = 20,
                                           .n_group = RIG_GROUP,
                                           .pos0 = 700,
                                           .q = q,
                                           .q_stride = RIG_GROUP * RIG_DIM};
        recall_scorer_start(r.tier, &query, r.tier->work, &s);
        recall_scorer_run(&s, r.store->row[2].kv, true, r.tier->work->value);
        recall_scorer_promise(&s, shelf);
        assert_true(shelf->n_fresh >= 8);
        for (int32_t p = 0; p < shelf->n_fresh; p++) {
            struct kv_seq *staging = r.tier->work->staging[0].kv;
            assert_true(recall_file_read(r.tier, shelf, p, true, &head, buffer));
            kv_lane_put_page(staging, 0, 0, buffer + RECALL_HEAD_SIZE, head.n);
            recall_scorer_run(&s, staging, false, value);
            for (int32_t e = 0; e < head.n; e++)
                assert_true(value[e] <= r.tier->work->promise[p] + 1e-4f);
            kv_lane_clear(staging, 0, 0);
        }
        rig_free(&r);
    }
}

/* ---- budgets ---- */

TEST_WITH(rig_make_path, rig_remove_path, a_full_file_loses_what_is_oldest)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_file_options(&g, 2, 3);
    struct rig r;
    struct recall_counts counts;
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    rig_queries(1, 1, q);
    rig_make(&r, &g, 1000);
    o.size -= 2 * rig_place_bytes(&g) + 1;
    assert_int_equal(recall_tier_create(&o, &r.model, NULL, 1, &r.tier, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "recall: size: "));
    o.size += 3 * rig_place_bytes(&g); /* a byte less than 4 */
    rig_open(&r, &o, 1);
    fill(&r, 1000);
    recall_store_count(r.store, &counts);
    assert_int_equal(counts.n_stored + counts.n_lost, 1000 * RIG_LANES);
    assert_true(counts.n_stored > 4 * RECALL_PAGE_LEN * RIG_LANES);
    assert_true(counts.n_stored <= 5 * RECALL_PAGE_LEN * RIG_LANES);
    assert_int_equal(counts.file_bytes, 3 * rig_place_bytes(&g));
    assert_true(file_size() <= o.size);
    rig_recall(&r, q, 1, 500, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        rig_check_guests(&r, l);
        assert_int_equal(n_guest[l], counts.n_stored / RIG_LANES);
    }
    rig_free(&r);
    assert_true(file_size() < RIG_FILE_BEGIN); /* and gives its room back */
}

/* ---- forks and truncation ---- */

TEST_WITH(rig_make_path, rig_remove_path, forks_share_the_file)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_file_options(&g, 2, 6);
    struct rig r;
    struct recall_store *fork;
    struct recall_counts a, b;
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    rig_queries(1, 1, q);
    rig_make(&r, &g, 800);
    rig_open(&r, &o, 1);
    fill(&r, 400);
    assert_int_equal(recall_store_fork(r.store, &fork, &err), PITH_OK);
    recall_store_count(fork, &b);
    assert_int_equal(b.n_stored, 400 * RIG_LANES);
    fill(&r, 400);
    recall_store_count(r.store, &a);
    recall_store_count(fork, &b);
    assert_int_equal(a.n_stored + a.n_lost, 800 * RIG_LANES);
    assert_int_equal(b.n_stored + b.n_lost, 400 * RIG_LANES);
    assert_true(b.n_stored > 0 && b.n_lost > 0);
    struct recall_store *own = r.store;
    r.store = fork;
    rig_recall(&r, q, 1, 800, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++)
        rig_check_guests(&r, l);
    r.store = own;
    recall_store_free(fork);
    rig_recall(&r, q, 1, 800, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++)
        rig_check_guests(&r, l);
    /* All places but the store's own are free again. */
    assert_int_equal(r.tier->shelf[0].n_fresh - r.tier->shelf[0].n_free, r.store->row[0].n_ref);
    rig_free(&r);
}

TEST_WITH(rig_make_path, rig_remove_path, truncation_reaches_into_the_file)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_file_options(&g, 2, 30);
    struct rig r;
    struct recall_store *fork;
    struct recall_counts counts;
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    rig_queries(1, 1, q);
    rig_make(&r, &g, 800);
    rig_open(&r, &o, 1);
    fill(&r, 800);
    assert_int_equal(recall_store_fork(r.store, &fork, &err), PITH_OK);
    const int32_t ends[] = {790, 333, 250};
    for (size_t i = 0; i < 3; i++) {
        recall_store_truncate(r.store, ends[i]);
        for (int32_t l = 0; l < RIG_LANES; l++)
            for (int32_t p = ends[i]; p < 800; p++)
                r.gone[l * 800 + p] = false;
        recall_store_count(r.store, &counts);
        assert_int_equal(counts.n_lost, 0);
        assert_int_equal(counts.n_stored, ends[i] * RIG_LANES);
        rig_recall(&r, q, 1, 800, n_guest);
        for (int32_t l = 0; l < RIG_LANES; l++) {
            assert_int_equal(n_guest[l], ends[i]);
            rig_check_guests(&r, l);
        }
    }
    recall_store_count(fork, &counts);
    assert_int_equal(counts.n_stored, 800 * RIG_LANES);
    recall_store_free(fork);
    recall_store_truncate(r.store, 0);
    recall_store_count(r.store, &counts);
    assert_int_equal(counts.n_stored + counts.n_lost + counts.ram_bytes + counts.file_bytes, 0);
    rig_free(&r);
}

/* ---- what fails ---- */

TEST_WITH(rig_make_path, rig_remove_path, a_full_disk_is_said_once)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_file_options(&g, 2, 40);
    struct rig r;
    struct rlimit before, limit;
    const char *line;
    float q[RIG_GROUP * RIG_DIM];
    int64_t n_lost;
    int32_t n_guest[RIG_LANES];
    rig_queries(1, 1, q);
    rig_make(&r, &g, 1000);
    rig_open(&r, &o, 1);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 2 * (rlim_t)rig_place_bytes(&g);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fill(&r, 1000);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(rig_log(&line), 1);
    assert_non_null(strstr(line, rig_path));
    assert_non_null(strstr(line, "cannot write: File too large"));
    int64_t n_stored = count_stored(&r, &n_lost);
    assert_int_equal(n_stored + n_lost, 1000 * RIG_LANES);
    assert_true(n_lost > 0);
    rig_recall(&r, q, 1, 1000, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        assert_true(n_guest[l] >= RECALL_PAGE_LEN);
        rig_check_guests(&r, l);
    }
    rig_free(&r);
}

TEST_WITH(rig_make_path, rig_remove_path, a_missing_directory_is_gone_without)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_file_options(&g, 2, 40);
    struct rig r;
    const char *line;
    int64_t n_lost;
    snprintf(o.file, sizeof(o.file), "%s.absent/tier", rig_path);
    rig_make(&r, &g, 500);
    rig_open(&r, &o, 1);
    assert_int_equal(rig_log(&line), 1);
    assert_non_null(strstr(line, o.file));
    assert_non_null(strstr(line, "No such file or directory"));
    fill(&r, 500);
    assert_int_equal(rig_log(&line), 0);
    assert_true(count_stored(&r, &n_lost) > 0 && n_lost > 0);
    rig_free(&r);
}

static void change_byte(int64_t offset)
{
    uint8_t byte;
    int fd = open(rig_path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

/* One page of lane 1 is damaged, in its head or behind: that page is lost, and nothing else. */
static void check_corrupt(int64_t at)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_file_options(&g, 2, 40);
    struct rig r;
    const char *line;
    float q[RIG_GROUP * RIG_DIM];
    int64_t n_lost;
    int32_t n_guest[RIG_LANES];
    char name[64];
    rig_queries(1, 1, q);
    rig_make(&r, &g, 1000);
    rig_open(&r, &o, 1);
    fill(&r, 1000);
    const struct recall_shelf *shelf = &r.tier->shelf[1];
    change_byte(shelf->offset + 3 * shelf->place_bytes + at);
    snprintf(name, sizeof(name), ": page %d is lost: ", shelf->n_place + 3);
    rig_recall(&r, q, 1, 1000, n_guest);
    assert_int_equal(rig_log(&line), 1);
    assert_non_null(strstr(line, rig_path));
    assert_non_null(strstr(line, name));
    for (int32_t l = 0; l < RIG_LANES; l++) {
        assert_int_equal(n_guest[l], l == 1 ? 1000 - RECALL_PAGE_LEN : 1000);
        rig_check_guests(&r, l);
    }
    count_stored(&r, &n_lost);
    assert_int_equal(n_lost, RECALL_PAGE_LEN);
    rig_free(&r);
}

TEST_WITH(rig_make_path, rig_remove_path, a_corrupt_page_is_lost)
{
    check_corrupt(5);                        /* the head */
    check_corrupt(100);                      /* positions */
    check_corrupt(RECALL_HEAD_SIZE + 1000);  /* keys */
    check_corrupt(RECALL_HEAD_SIZE + 16000); /* values */
}

TEST_WITH(rig_make_path, rig_remove_path, a_file_that_is_cut_off_loses_its_pages)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_file_options(&g, 2, 40);
    struct rig r;
    const char *line;
    float q[RIG_GROUP * RIG_DIM];
    int64_t n_lost;
    int32_t n_guest[RIG_LANES];
    rig_queries(1, 1, q);
    rig_make(&r, &g, 1000);
    rig_open(&r, &o, 1);
    fill(&r, 1000);
    assert_int_equal(truncate(rig_path, r.tier->shelf[2].offset + 100), 0);
    recall_store_truncate(r.store, 990); /* reads heads, too */
    rig_recall(&r, q, 1, 1000, n_guest);
    assert_int_equal(rig_log(&line), 1);
    assert_non_null(strstr(line, "the file ends at byte"));
    for (int32_t l = 0; l < RIG_LANES; l++)
        rig_check_guests(&r, l);
    assert_int_equal(n_guest[0], 990);
    assert_true(n_guest[3] > 0 && n_guest[3] < 200);
    assert_true(count_stored(&r, &n_lost) < 990 * RIG_LANES && n_lost > 0);
    rig_free(&r);
}

/* ---- files that are there already ---- */

static void put_file(const void *data, size_t size)
{
    int fd = open(rig_path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, data, size), size);
    close(fd);
}

static void expect_refused(const struct recall_kv_options *o, const struct kv_geometry *g,
                           const char *why)
{
    struct rig r;
    err = (pith_error){0};
    uint8_t before[RIG_FILE_BEGIN], after[RIG_FILE_BEGIN];
    int fd = open(rig_path, O_RDONLY);
    ssize_t n = read(fd, before, sizeof(before));
    rig_make(&r, g, 100);
    assert_int_not_equal(recall_tier_create(o, &r.model, NULL, 1, &r.tier, &err), PITH_OK);
    if (strstr(err.message, why) == NULL || strstr(err.message, rig_path) == NULL)
        fail_msg("%s", err.message);
    assert_int_equal(pread(fd, after, sizeof(after), 0), n); /* it is as it was */
    assert_memory_equal(before, after, (size_t)n);
    close(fd);
    rig_free(&r);
}

/* The header of a tier's file, changed by the caller, with a correct checksum. */
static void put_header(struct recall_kv_options *o, size_t at, uint8_t value)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    uint8_t bytes[RIG_FILE_BEGIN];
    struct rig r;
    size_t size = RECALL_FILE_HEADER + 4 * RIG_LAYERS;
    put_file("", 0);
    rig_make(&r, &g, 100);
    rig_open(&r, o, 1);
    int fd = open(rig_path, O_RDONLY);
    assert_int_equal(read(fd, bytes, sizeof(bytes)), size + 8);
    close(fd);
    rig_free(&r);
    bytes[at] = value;
    uint64_t sum = pi_sum_of(bytes, size);
    for (size_t i = 0; i < 8; i++)
        bytes[size + i] = (uint8_t)(sum >> (8 * i));
    put_file(bytes, size + 8);
}

TEST_WITH(rig_make_path, rig_remove_path, foreign_files_are_refused)
{
    struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_file_options(&g, 2, 10);
    struct rig r;
    struct recall_tier *second;
    put_file("dear diary", 10);
    expect_refused(&o, &g, "this is no file of recall");
    put_header(&o, 8, 2);
    expect_refused(&o, &g, "version 2 of a file of recall; this Pith uses version 1");
    put_header(&o, 12, 1);
    expect_refused(&o, &g, "another order of bytes");
    put_header(&o, 24, 7);
    put_header(&o, 40, 32);
    expect_refused(&o, &g, "of another model");
    put_header(&o, 32, 3);
    expect_refused(&o, &g, "says what cannot be");
    put_header(&o, 60, 1);
    change_byte(70);
    expect_refused(&o, &g, "the checksum of its header is wrong");
    put_header(&o, 60, 0);
    g.dim_v = 32;
    expect_refused(&o, &g, "of another model");
    g.dim_v = RIG_DIM;
    rig_make(&r, &g, 100);
    rig_open(&r, &o, 1);
    assert_int_equal(recall_tier_create(&o, &r.model, NULL, 1, &second, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "in use already"));
    rig_free(&r);
    snprintf(o.file, sizeof(o.file), "/dev/null");
    rig_make(&r, &g, 100);
    assert_int_equal(recall_tier_create(&o, &r.model, NULL, 1, &second, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "/dev/null: not a regular file"));
    rig_free(&r);
}

/*
 * A child fills a tier until it is killed, again and again, at any moment of its writing. Once
 * every lane has been spilled it says so by a byte to `told`.
 */
static void spill_for_ever(const struct recall_kv_options *o, int told)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct rig r;
    rig_make(&r, &g, 100);
    rig_open(&r, o, 1);
    rig_append(&r, 100);
    for (bool first = true;; first = false) {
        for (int32_t l = 0; l < RIG_LANES; l++)
            recall_store_remember(r.store, r.seq, l / RIG_HEADS, l % RIG_HEADS, NULL, 0, 0);
        if (first && write(told, "", 1) != 1)
            _exit(1);
    }
}

/* A child that spills to the file of `o`; `*told` is where its byte is read. */
static pid_t start_spilling(const struct recall_kv_options *o, int *told)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0)
        spill_for_ever(o, ends[1]);
    assert_true(child > 0);
    close(ends[1]);
    *told = ends[0];
    return child;
}

/* Kills it; its status is that of the signal. */
static void stop_spilling(pid_t child, int told)
{
    int status;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    close(told);
}

/* Heads of pages in the file that are neither empty nor whole. */
static int32_t count_torn(void)
{
    struct recall_file_shape shape;
    struct recall_head head;
    size_t size = (size_t)file_size(), header, at = RIG_FILE_BEGIN;
    uint8_t *bytes = test_calloc(size + 1, 1);
    FILE *file = fopen(rig_path, "rb");
    int32_t n = 0;
    bool empty;
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, size, file), size);
    fclose(file);
    pith_status status = recall_file_parse(bytes, size, &shape, &header, NULL);
    for (int32_t l = 0; status == PITH_OK && l < shape.n_layer; l++)
        for (int32_t i = 0; i < shape.n_head * shape.n_place; i++) {
            if (at + RECALL_HEAD_SIZE <= size)
                n += recall_head_parse(bytes + at, &head, &empty, NULL) != PITH_OK;
            at += recall_file_place_size(bytes, l);
        }
    test_free(bytes);
    return n;
}

TEST_WITH(rig_make_path, rig_remove_path, a_killed_process_leaves_a_file_that_opens)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_file_options(&g, 1, 20);
    uint64_t rng = 5;
    const char *line;
    for (int32_t i = 0; i < 12; i++) {
        int told;
        char byte;
        bool written = i % 3 > 0; /* else it may be killed before it has opened the file */
        pid_t child = start_spilling(&o, &told);
        if (written)
            assert_int_equal(read(told, &byte, 1), 1);
        usleep((useconds_t)rng_below(&rng, 20000));
        stop_spilling(child, told);
        assert_true(!written || file_size() > RIG_FILE_BEGIN);
        int32_t n_torn = count_torn();
        assert_in_range(n_torn, 0, 1); /* the one that was being written */
        struct rig r;
        float q[RIG_GROUP * RIG_DIM];
        int32_t n_guest[RIG_LANES];
        if (i % 3 == 2) /* another budget, and other types, are the same model's */
            o.size += rig_place_bytes(&g);
        rig_queries(1, 1, q);
        rig_make(&r, &g, 500);
        rig_open(&r, &o, 1);
        fill(&r, 500);
        rig_recall(&r, q, 1, 500, n_guest);
        assert_int_equal(n_guest[0], 500);
        for (int32_t l = 0; l < RIG_LANES; l++)
            rig_check_guests(&r, l);
        rig_free(&r);
        assert_int_equal(rig_log(&line), n_torn);
        if (n_torn > 0 && strstr(line, "is dropped: the checksum of its head is wrong") == NULL)
            fail_msg("%s", line);
    }
}

/* A page of an earlier run that is torn is told of, by file and page. */
TEST_WITH(rig_make_path, rig_remove_path, a_torn_page_of_an_earlier_run_is_told)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_file_options(&g, 1, 20);
    struct rig r;
    const char *line;
    int told;
    pid_t child = start_spilling(&o, &told);
    while (file_size() < RIG_FILE_BEGIN + 10 * rig_place_bytes(&g))
        usleep(1000);
    stop_spilling(child, told);
    change_byte(RIG_FILE_BEGIN + 2 * rig_place_bytes(&g) / RIG_LANES + 9);
    rig_make(&r, &g, 100);
    rig_open(&r, &o, 1);
    assert_int_equal(rig_log(&line), 1);
    assert_non_null(strstr(line, rig_path));
    assert_non_null(strstr(line, ": page 2 is dropped: the checksum of its head is wrong"));
    fill(&r, 100);
    rig_free(&r);
}

/* ---- threads ---- */

struct parallel {
    struct rig *r;
    const float *q;
    int32_t n_guest[RIG_LANES];
};

static void remember_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct parallel *p = ctx;
    for (int32_t l = (int32_t)begin; l < end; l++)
        recall_store_remember(p->r->store, p->r->seq, l / RIG_HEADS, l % RIG_HEADS, NULL, 0,
                              thread);
}

static void choose_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct parallel *p = ctx;
    for (int32_t l = (int32_t)begin; l < end; l++) {
        const struct recall_query query = {.layer = l / RIG_HEADS,
                                           .head = l % RIG_HEADS,
                                           .n_tok = 5,
                                           .n_group = RIG_GROUP,
                                           .pos0 = 400,
                                           .q = p->q,
                                           .q_stride = RIG_GROUP * RIG_DIM};
        p->n_guest[l] = recall_store_choose(p->r->store, &query, p->r->guests, 90, thread);
    }
}

static uint64_t run_with_threads(int32_t n_thread)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_file_options(&g, 2, 6);
    struct rig r;
    float q[5 * RIG_GROUP * RIG_DIM], row[RIG_DIM];
    uint64_t digest = 1;
    rig_queries(9, 5, q);
    rig_make(&r, &g, 900);
    rig_open(&r, &o, n_thread);
    assert_int_equal(kv_seq_reserve(r.guests, 90, &err), PITH_OK);
    struct parallel p = {.r = &r, .q = q};
    for (int32_t i = 0; i < 9; i++) {
        rig_append(&r, 100);
        pi_parallel_items(n_thread, RIG_LANES, remember_lanes, &p);
        kv_seq_truncate(r.seq, 0);
        pi_parallel_items(n_thread, RIG_LANES, choose_lanes, &p);
        for (int32_t l = 0; l < RIG_LANES; l++)
            for (int32_t s = 0; s < p.n_guest[l]; s++) {
                int32_t pos = kv_lane_pos(r.guests, l / RIG_HEADS, l % RIG_HEADS, s);
                kv_lane_key(r.guests, l / RIG_HEADS, l % RIG_HEADS, s, row);
                digest = digest * 31 + (uint64_t)pos;
                for (int32_t d = 0; d < RIG_DIM; d++)
                    digest = digest * 31 + (uint64_t)(int64_t)(row[d] * 1e6f);
            }
    }
    rig_free(&r);
    return digest;
}

TEST_WITH(rig_make_path, rig_remove_path, threads_change_nothing)
{
    uint64_t one = run_with_threads(1);
    assert_true(run_with_threads(2) == one);
    assert_true(run_with_threads(4) == one);
}
