/*
 * Files of calibration statistics: the vector of the TRIA format and the published files. Each
 * format is read back, or refused with a sentence that names the fault. Also full disks and failing
 * memory.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "testing.h"

#include "base/mem.h"
#include "base/os.h"
#include "file/sum.h"
#include "near.h"
#include "policy/keep/stats/stats.h"
#include "status.h"

#define VECTORS PITH_SOURCE_DIR "/tests/vectors/triattention.json"

/* ---- TRIA ---- */

static json_t *part(const char *side, const char *key)
{
    static json_t *root;
    if (root == NULL)
        root = json_load_file(VECTORS, 0, NULL);
    assert_non_null(root);
    json_t *v = json_array_get(json_object_get(root, "vectors"), 11);
    json_t *out = json_object_get(json_object_get(v, side), key);
    assert_non_null(out);
    return out;
}

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return n;
}

TEST(reads_the_tria_file_of_vector_12)
{
    uint8_t data[256], bad[256];
    struct pith_stats *s = NULL;
    size_t n = from_hex(json_string_value(part("inputs", "hex")), data);
    assert_int_equal(n, json_integer_value(part("expected", "size")));
    check(stats_parse(data, n, &s, &err), &err);
    assert_int_equal(s->n_layer, json_integer_value(part("expected", "layers")));
    assert_int_equal(s->n_head, json_integer_value(part("expected", "q_heads")));
    assert_int_equal(s->n_head_kv, json_integer_value(part("expected", "kv_heads")));
    assert_int_equal(s->n_pair, json_integer_value(part("expected", "bands")));
    assert_null(s->freq); /* the base in the header is not to be believed */
    assert_string_equal(s->format, "TRIA 2");
    for (size_t f = 0; f < 4; f++)
        near((double)stats_q(s, 0, 0).abs[f],
             json_number_value(json_array_get(part("expected", "head0_q_abs_mean"), f)), 0);
    pith_stats_free(s);

    for (size_t cut = 0; cut < n; cut++) /* every shorter file */
        assert_int_equal(stats_parse(data, cut, &s, &err), PITH_FORMAT);
    const struct {
        size_t at;
        uint8_t byte;
        pith_status status;
        const char *word;
    } damage[] = {
        {4, 3, PITH_UNSUPPORTED, "version 3"},    {8, 0, PITH_FORMAT, "layers: 0"},
        {12, 0, PITH_FORMAT, "query heads: 0"},   {20, 10, PITH_FORMAT, "10 rotated dimensions"},
        {24, 5, PITH_FORMAT, "not two for each"}, {9, 1, PITH_FORMAT, "should have"},
        {71, 0x42, PITH_FORMAT, "no R in 0..1"},  {71, 0x7f, PITH_FORMAT, "no number"},
    };
    for (size_t i = 0; i < PI_LEN(damage); i++) {
        memcpy(bad, data, n);
        bad[damage[i].at] = damage[i].byte;
        expect(stats_parse(bad, n, &s, &err), &err, damage[i].status, damage[i].word);
    }
    memset(bad + 64, 0, n - 64);
    memcpy(bad, data, 64);
    expect(stats_parse(bad, n, &s, &err), &err, PITH_FORMAT, "none of the 1 layers");
}

/* ---- published files ---- */

TEST(reads_published_files)
{
    static const struct {
        const char *name;
        int32_t n_layer, n_head;
        double mean_r, narrow; /* of all bands; percent of heads with top-2 R above .95 */
    } file[] = {
        {"stats/qwen3-8b.tria.bin", 36, 32, 0.595, 93.1},
        {"stats/qwen3-1.7b.tria.bin", 28, 16, 0.595, 71.0},
    };
    for (size_t i = 0; i < PI_LEN(file); i++) {
        const char *path = test_data(file[i].name);
        pith_stats *s = NULL;
        double sum = 0.0;
        int32_t n_narrow = 0, order[64];
        check(pith_stats_load(path, &s, &err), &err);
        assert_int_equal(s->n_layer, file[i].n_layer);
        assert_int_equal(s->n_head, file[i].n_head);
        assert_int_equal(s->n_pair, 64);
        for (int32_t l = 0; l < s->n_layer; l++)
            for (int32_t h = 0; h < s->n_head; h++) {
                struct stats_row row = stats_q(s, l, h);
                for (int32_t f = 0; f < 64; f++)
                    sum += stats_resultant(&row, f);
                stats_dominant(&row, NULL, 64, order);
                n_narrow +=
                    stats_resultant(&row, order[0]) + stats_resultant(&row, order[1]) > 2 * 0.95;
            }
        double n = (double)s->n_layer * s->n_head;
        near(sum / n / 64, file[i].mean_r, 5e-4);
        near(100.0 * n_narrow / n, file[i].narrow, 0.05);
        pith_stats_free(s);
    }
}

/* A PyTorch archive is refused with the way to convert it. */
TEST(refuses_an_archive_with_the_way_to_convert_it)
{
    struct pith_stats *s = NULL;
    const uint8_t zip[] = "PK\3\4 and whatever follows";
    expect(stats_parse(zip, sizeof(zip), &s, &err), &err, PITH_UNSUPPORTED,
           "scripts/stats_from_pt.py");
    assert_null(s);
}

/* ---- Pith's own file ---- */

static void seal(uint8_t *bytes, size_t n)
{
    uint64_t sum = pi_sum_of(bytes, n - 8);
    for (int i = 0; i < 8; i++)
        bytes[n - 8 + (size_t)i] = (uint8_t)(sum >> (8 * i));
}

static void fill_rows(float *rows, size_t n_row, size_t n_pair, size_t n_flat, uint64_t *rng)
{
    for (size_t i = 0; i < n_row; i++, rows += 3 * n_pair + n_flat) {
        for (size_t f = 0; f < n_pair; f++) {
            rows[f] = rng_float(rng);
            rows[n_pair + f] = rng_float(rng);
            rows[2 * n_pair + f] = 2.0f + rng_float(rng) / 4;
        }
        for (size_t d = 0; d < n_flat; d++)
            rows[3 * n_pair + d] = rng_float(rng);
    }
}

/* Statistics with every feature. There are 2 layers, of which the second has none, 4 query and 2 KV
   heads, and 3 bands. There are 2 unrotated dimensions, 3 centres and 2 ranges. */
static struct pith_stats *make_stats(void)
{
    enum { LAYERS = 2, HEADS = 4, HEADS_KV = 2, PAIRS = 3, FLAT = 2, CENTRES = 3 };
    struct pith_stats *s = NULL;
    uint64_t rng = 4;
    check(stats_new(&s, &err), &err);
    s->n_layer = LAYERS;
    s->n_head = HEADS;
    s->n_head_kv = HEADS_KV;
    s->n_pair = PAIRS;
    s->n_flat = FLAT;
    s->n_centre = CENTRES;
    s->n_range = 2;
    s->pairing = PITH_PAIRING_ADJACENT;
    s->select = PITH_SELECT_RANGES;
    s->fingerprint = 0x123456789abcdef0u;
    s->n_token = 211;
    s->magnitude = 1.25f;
    check(stats_alloc(s, true, true, &err), &err);
    s->model = policy_name("a model\x1b[2J", 11);
    s->text = policy_name("", 0);
    s->range[0] = (pith_range){3, 200};
    s->range[1] = (pith_range){210, 211};
    s->count[0] = 198;
    for (int f = 0; f < PAIRS; f++)
        s->freq[f] = 1.0 / (1 + f);
    fill_rows(s->q, HEADS, PAIRS, FLAT, &rng); /* of the first layer */
    fill_rows(s->k, HEADS_KV, PAIRS, FLAT, &rng);
    fill_rows(s->centre, (size_t)HEADS * CENTRES, PAIRS, FLAT, &rng);
    for (int i = 0; i < HEADS * CENTRES; i++)
        s->weight[i] = i % CENTRES == 0 ? 0.0f : 0.5f;
    check(stats_check(s, &err), &err);
    return s;
}

static uint8_t *bytes_of(const struct pith_stats *s, size_t *n)
{
    uint8_t *out = NULL;
    check(stats_format(s, &out, n, &err), &err);
    return out;
}

/* Offsets of the parts of make_stats's file, from docs/stats.md. */
enum {
    AT_RANGES = 88 + 11,
    AT_COUNTS = AT_RANGES + 2 * 8,
    AT_FREQ = AT_COUNTS + 2 * 8,
    AT_QUERIES = AT_FREQ + 3 * 8,
    AT_KEYS = AT_QUERIES + 2 * 4 * 11 * 4,
    AT_SHARES = AT_KEYS + 2 * 2 * 11 * 4,
    AT_CENTRES = AT_SHARES + 2 * 4 * 3 * 4,
    AT_SUM = AT_CENTRES + 2 * 4 * 3 * 11 * 4 + 8,
};

TEST(a_file_comes_back_as_it_was)
{
    struct pith_stats *first = make_stats(), *s = NULL;
    size_t n, n_again;
    uint8_t *bytes = bytes_of(first, &n);
    assert_int_equal(n, AT_SUM + 8);
    assert_string_equal(first->model, "a model?[2J"); /* nothing that steers a terminal */
    check(stats_parse(bytes, n, &s, &err), &err);
    uint8_t *again = bytes_of(s, &n_again);
    assert_int_equal(n, n_again);
    assert_memory_equal(bytes, again, n);
    assert_int_equal(s->count[0], 198);
    assert_int_equal(s->count[1], 0);
    assert_string_equal(s->model, "a model?[2J");
    near((double)stats_k(s, 0, 3).abs[2], (double)first->k[11 + 8], 0);
    pith_stats_free(s);
    pith_stats_free(first);
    pi_mem_free(bytes);
    pi_mem_free(again);
}

TEST(refuses_damaged_files)
{
    struct pith_stats *first = make_stats(), *s = NULL;
    size_t n;
    uint8_t *bytes = bytes_of(first, &n), *again = bytes_of(first, &n);
    pith_stats_free(first);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(stats_parse(bytes, cut, &s, &err), PITH_FORMAT);
    for (size_t i = 0; i < n; i++) { /* every byte matters */
        memcpy(again, bytes, n);
        again[i] ^= 0x40;
        assert_int_not_equal(stats_parse(again, n, &s, &err), PITH_OK);
    }
    const struct {
        size_t at;
        uint8_t byte;
        pith_status status;
        const char *word;
    } damage[] = {
        {8, 1, PITH_UNSUPPORTED, "version 1 of the statistics; this Pith reads version 2"},
        {8, 3, PITH_UNSUPPORTED, "version 3"},
        {12, 99, PITH_FORMAT, "header size: 99"},
        {16, 1, PITH_FORMAT, "should have"},
        {39, 0x80, PITH_FORMAT, "tokens"},
        {40, 0, PITH_FORMAT, "layers: 0"},
        {43, 0xff, PITH_FORMAT, "layers: 2147483647"},
        {44, 5, PITH_FORMAT, "5 query heads"},
        {48, 0, PITH_FORMAT, "no KV head"},
        {52, 15, PITH_FORMAT, "its counts make"},
        {60, 0, PITH_FORMAT, "centres: 0"},
        {66, 0xff, PITH_FORMAT, "ranges: 16711682"},
        {68, 3, PITH_FORMAT, "pairing: 3"},
        {70, 4, PITH_FORMAT, "selection: 4"},
        {70, 1, PITH_FORMAT, "selection: 1 does not go with 2 ranges"},
        {72, 4, PITH_FORMAT, "flags: 4"},
        {79, 0xbf, PITH_FORMAT, "magnitude: -"},
        {81, 0xff, PITH_FORMAT, "model's name: 65291"},
        {88, 0, PITH_FORMAT, "zero byte"},
        {AT_RANGES + 8, 100, PITH_FORMAT, "range 1: tokens 100"},
        {AT_COUNTS + 7, 0x80, PITH_FORMAT, "layer 0: -9223372036854775610 queries"},
        {AT_FREQ + 7, 0xbf, PITH_FORMAT, "band 0: -"},
        {AT_QUERIES + 3, 0x7f, PITH_FORMAT, "layer 0, head 0"},
        {AT_KEYS + 4 * 8 + 3, 0xc0, PITH_FORMAT, "of the keys: the mean's modulus"},
        {AT_SHARES + 3, 0x3f, PITH_FORMAT, "1.5 together"},
        {AT_SHARES + 7, 0xbf, PITH_FORMAT, "share -0.5"},
    };
    for (size_t i = 0; i < PI_LEN(damage); i++) {
        memcpy(again, bytes, n);
        again[damage[i].at] = damage[i].byte;
        if (damage[i].at == AT_SHARES + 3)
            again[AT_SHARES + 2] = 0; /* 0.5 */
        seal(again, n);
        expect(stats_parse(again, n, &s, &err), &err, damage[i].status, damage[i].word);
        assert_null(s);
    }
    pi_mem_free(bytes);
    pi_mem_free(again);
}

/* ---- files on a disk ---- */

static void folder_path(const char *folder, const char *name, char *path, size_t cap)
{
    assert_true((size_t)snprintf(path, cap, "%s/%s", folder, name) < cap);
}

/* If a file cannot be written whole, the old file stays, and nothing else. */
TEST(a_full_disk_leaves_the_old_file)
{
    char folder[] = "/tmp/pith-stats-XXXXXX", path[64], text[64];
    struct rlimit old, small;
    struct pith_stats *s = make_stats(), *again = NULL;
    assert_non_null(mkdtemp(folder));
    folder_path(folder, "a.stats", path, sizeof(path));
    check(pith_stats_save(s, path, &err), &err);
    s->text[0] = '\0';
    s->n_token = 999;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pith_status status = pith_stats_save(s, path, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    expect(status, &err, PITH_IO, "a.stats: cannot write");
    check(pith_stats_load(path, &again, &err), &err);
    assert_int_equal(again->n_token, 211);
    pith_stats_free(again);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* so nothing lay beside it */

    folder_path(folder, "b", path, sizeof(path)); /* the folder is gone */
    expect(pith_stats_save(s, path, &err), &err, PITH_IO, "/b: cannot create");
    expect(pith_stats_load(path, &again, &err), &err, PITH_IO, "cannot open");
    snprintf(text, sizeof(text), "%s", "/");
    expect(pith_stats_load(text, &again, &err), &err, PITH_IO, "regular");
    expect(pith_stats_save(s, text, &err), &err, PITH_IO, "Is a directory");
    pith_stats_free(s);
}

/* ---- memory that is not there ---- */

static void fail_each(const uint8_t *bytes, size_t n)
{
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    struct pith_stats *s = NULL;
    for (int64_t i = 1;; i++) {
        assert_true(i < 100);
        pi_mem_fail_at(i, true);
        pith_status status = stats_parse(bytes, n, &s, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_OK) {
            assert_true(i > 3);
            break;
        }
        expect(status, &err, PITH_NOMEM, "no memory");
        assert_null(s);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
    }
    pith_stats_free(s);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
}

/* Every allocation that fails is said, and leaves nothing behind. */
TEST(failing_memory_leaves_nothing)
{
    struct pith_stats *s = make_stats();
    size_t n;
    uint8_t tria[64 + 16] = {'A', 'I', 'R', 'T', 1, 0, 0, 0, 1, 0, 0, 0, 1,
                             0,   0,   0,   1,   0, 0, 0, 2, 0, 0, 0, 1};
    uint8_t *bytes = bytes_of(s, &n);
    fail_each(bytes, n);
    pi_mem_free(bytes);
    tria[64 + 3] = tria[64 + 8 + 3] = 0x40; /* 2 + 0i of modulus 2 */
    fail_each(tria, sizeof(tria));

    char folder[] = "/tmp/pith-stats-XXXXXX", path[64];
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    assert_non_null(mkdtemp(folder));
    folder_path(folder, "a.stats", path, sizeof(path));
    for (int64_t i = 1;; i++) {
        pi_mem_fail_at(i, true);
        pith_status status = pith_stats_save(s, path, &err);
        pi_mem_fail_at(0, false);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
        if (status == PITH_OK)
            break;
        expect(status, &err, PITH_NOMEM, "no memory");
        assert_int_not_equal(access(path, F_OK), 0);
    }
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
    pith_stats_free(s);
}
